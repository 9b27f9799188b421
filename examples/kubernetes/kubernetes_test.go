// Package kubernetes has tests of the manifests beside it.
package kubernetes

import (
	"bytes"
	"errors"
	"io"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// decode reads the manifests as an API server does that is told to be strict: it refuses fields and
// kinds that there are not, and values of another type.
func decode(t *testing.T, file string) (all []runtime.Object) {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, appsv1.AddToScheme, batchv1.AddToScheme, policyv1.AddToScheme} {
		require.NoError(t, add(scheme))
	}
	strict := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	documents := yaml.NewDocumentDecoder(io.NopCloser(bytes.NewReader(text)))
	buf := make([]byte, 1<<20)
	for {
		n, err := documents.Read(buf)
		if errors.Is(err, io.EOF) {
			return all
		}
		require.NoError(t, err)
		document := buf[:n]
		if len(bytes.TrimSpace(regexp.MustCompile(`(?m)^#.*$`).ReplaceAll(document, nil))) == 0 {
			continue
		}
		o, _, err := strict.Decode(document, nil, nil)
		require.NoError(t, err, "%s: %s", file, document)
		all = append(all, o)
	}
}

func TestNodesAreThreeIndependentMasters(t *testing.T) {
	services, zones := make(map[string]bool), make(map[string]bool)
	var first *corev1.PodSpec
	masters, budgets := 0, 0
	for _, o := range decode(t, "nodes.yaml") {
		switch o := o.(type) {
		case *corev1.ConfigMap:
			assert.Contains(t, o.Data["redis.conf"], "maxmemory-policy noeviction\n")
			assert.Contains(t, o.Data["redis.conf"], "appendonly yes\n")
		case *policyv1.PodDisruptionBudget:
			budgets++
			assert.Equal(t, 1, o.Spec.MaxUnavailable.IntValue())
		case *corev1.Service:
			services[o.Name] = true
		case *appsv1.StatefulSet:
			masters++
			assert.EqualValues(t, 1, *o.Spec.Replicas)
			assert.True(t, services[o.Spec.ServiceName], "%s has no service", o.Name)
			selector, err := metav1.LabelSelectorAsSelector(o.Spec.Selector)
			require.NoError(t, err)
			pod := o.Spec.Template
			assert.True(t, selector.String() != "" && pod.Labels["node"] == o.Labels["node"])
			zone := pod.Spec.NodeSelector[corev1.LabelTopologyZone]
			assert.False(t, zone == "" || zones[zone], "%s: zone %q", o.Name, zone)
			zones[zone] = true
			for _, arg := range pod.Spec.Containers[0].Command {
				assert.NotContains(t, arg, "replicaof")
			}
			spec := pod.Spec.DeepCopy()
			spec.NodeSelector = nil
			if first == nil {
				first = spec
			}
			assert.Equal(t, first, spec, "%s is like the others", o.Name)
		default:
			t.Errorf("unexpected %T", o)
		}
	}
	assert.Equal(t, 3, masters)
	assert.Equal(t, 1, budgets)
}

func TestCronJobUsesTheNodes(t *testing.T) {
	all := decode(t, "cronjob.yaml")
	require.Len(t, all, 1)
	pod := all[0].(*batchv1.CronJob).Spec.JobTemplate.Spec.Template.Spec
	assert.Equal(t, corev1.RestartPolicyNever, pod.RestartPolicy)
	c := pod.Containers[0]
	assert.Equal(t, "run", c.Args[0])
	assert.Equal(t, "/etc/redlock", c.VolumeMounts[0].MountPath)
	assert.Equal(t, pod.Volumes[0].Name, c.VolumeMounts[0].Name)
	assert.Equal(t, "REDLOCK_CONFIG", c.Env[0].Name)

	text, err := os.ReadFile("cronjob.yaml")
	require.NoError(t, err)
	for _, o := range decode(t, "nodes.yaml") {
		if s, ok := o.(*corev1.Service); ok {
			assert.True(t, strings.Contains(string(text), s.Name+".locks.svc:6379"), "%s is not among the addresses", s.Name)
		}
	}
}
