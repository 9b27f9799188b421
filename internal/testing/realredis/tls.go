package realredis

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// identity is a throw-away authority and one certificate of it, which servers
// show to clients and to each other.
type identity struct {
	authority     *x509.Certificate
	authorityKey  *ecdsa.PrivateKey
	ca, cert, key []byte // PEM
	config        *tls.Config
}

// theIdentity is shared by all servers of this process: that lets a replica or
// a sentinel talk TLS with its master, and one tls.Config serve a quorum.
var theIdentity = sync.OnceValues(newIdentity)

func newIdentity() (*identity, error) {
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	ca := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "realredis test CA"},
		NotBefore:             now.Add(-time.Hour),
		NotAfter:              now.Add(24 * time.Hour),
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign,
	}
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, caKey.Public(), caKey)
	if err != nil {
		return nil, err
	}

	id := &identity{authority: ca, authorityKey: caKey, ca: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: caDER})}
	if id.cert, id.key, err = id.issue(2); err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(id.cert, id.key)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(id.ca)
	id.config = &tls.Config{
		MinVersion:   tls.VersionTLS12,
		RootCAs:      roots,
		Certificates: []tls.Certificate{pair}, // for tls-auth-clients yes
	}
	return id, nil
}

// issue makes a certificate of the authority, and its key.
func (id *identity) issue(serial int64) (cert, key []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	certDER, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(serial),
		Subject:      pkix.Name{CommonName: "realredis test server"},
		NotBefore:    id.authority.NotBefore,
		NotAfter:     id.authority.NotAfter,
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		DNSNames:     []string{"localhost"},
		IPAddresses:  []net.IP{net.ParseIP(loopback), net.IPv6loopback},
	}, id.authority, private.Public(), id.authorityKey)
	if err != nil {
		return nil, nil, err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return nil, nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certDER}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}), nil
}

// ReplaceCertificate gives the running server a new key, and a certificate of the same authority with this
// serial number, which new connections are shown. The server must have been started with [TLS]; its first
// certificate has number 2.
func (s *Server) ReplaceCertificate(ctx context.Context, serial int64) error {
	cert, key, err := s.identity.issue(serial)
	if err != nil {
		return fmt.Errorf("realredis: %w", err)
	}
	for name, content := range map[string][]byte{"server.crt": cert, "server.key": key} {
		if err := os.WriteFile(s.path(name), content, 0o600); err != nil {
			return fmt.Errorf("realredis: %w", err)
		}
	}
	return s.ask(ctx, func(ctx context.Context, c *redis.Client) error {
		return c.ConfigSet(ctx, "tls-cert-file", s.path("server.crt")).Err() // the file is read again
	})
}

// write puts the files into dir and returns the directives which name them.
func (id *identity) write(dir string) ([]string, error) {
	var directives []string
	for _, f := range []struct {
		directive, name string
		content         []byte
	}{
		{"tls-ca-cert-file", "ca.crt", id.ca},
		{"tls-cert-file", "server.crt", id.cert},
		{"tls-key-file", "server.key", id.key},
	} {
		path := filepath.Join(dir, f.name)
		if err := os.WriteFile(path, f.content, 0o600); err != nil {
			return nil, err
		}
		directives = append(directives, f.directive+" "+quote(path))
	}
	return append(directives, "tls-auth-clients optional"), nil
}
