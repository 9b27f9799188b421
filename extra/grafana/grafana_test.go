// Package grafana has tests of the dashboard and the alert rules beside it.
package grafana

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/extra/redlockprom"
	"github.com/quorumlock/redlock/internal/testing/doccheck"
	"github.com/quorumlock/redlock/redlocktest"
)

type dashboard struct {
	Panels     []panel `json:"panels"`
	Templating struct {
		List []struct {
			Name  string `json:"name"`
			Type  string `json:"type"`
			Query any    `json:"query"`
		} `json:"list"`
	} `json:"templating"`
	Annotations struct {
		List []struct {
			Expr       string `json:"expr"`
			TextFormat string `json:"textFormat"`
		} `json:"list"`
	} `json:"annotations"`
}

type panel struct {
	ID      int    `json:"id"`
	Type    string `json:"type"`
	Title   string `json:"title"`
	Says    string `json:"description"`
	GridPos struct{ H, W, X, Y int }
	Targets []struct {
		Expr         string `json:"expr"`
		LegendFormat string `json:"legendFormat"`
	} `json:"targets"`
}

type ruleFile struct {
	Groups []struct {
		Name  string `yaml:"name"`
		Rules []rule `yaml:"rules"`
	} `yaml:"groups"`
}

type rule struct {
	Alert       string            `yaml:"alert"`
	Expr        string            `yaml:"expr"`
	For         string            `yaml:"for"`
	Labels      map[string]string `yaml:"labels"`
	Annotations map[string]string `yaml:"annotations"`
}

func readDashboard(t *testing.T) (d dashboard) {
	text, err := os.ReadFile("dashboard.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &d))
	return d
}

func readRules(t *testing.T) (rules []rule) {
	text, err := os.ReadFile("alerts.yml")
	require.NoError(t, err)
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	var f ruleFile
	require.NoError(t, decoder.Decode(&f))
	for _, g := range f.Groups {
		rules = append(rules, g.Rules...)
	}
	return rules
}

// query is an expression somewhere in the files.
type query struct{ where, expr, legend string }

var variables = strings.NewReplacer("$__rate_interval", "5m", "$__range", "1h", "$job", "api", "$instance", "a")

func queries(t *testing.T) (all []query) {
	d := readDashboard(t)
	for _, p := range d.Panels {
		for _, target := range p.Targets {
			all = append(all, query{"panel " + p.Title, variables.Replace(target.Expr), target.LegendFormat})
		}
	}
	for _, a := range d.Annotations.List {
		all = append(all, query{"annotation", variables.Replace(a.Expr), a.TextFormat})
	}
	for _, r := range readRules(t) {
		all = append(all, query{"alert " + r.Alert, r.Expr, r.Annotations["summary"] + r.Annotations["description"]})
	}
	require.NotEmpty(t, all)
	return all
}

// exported is what a program with the collector shows after something of everything has
// happened: by name, the values of each label.
func exported(t *testing.T) map[string]map[string][]string {
	all := make(map[string]map[string][]string)
	add := func(name string, m *dto.Metric, also ...string) {
		if all[name] == nil {
			all[name] = map[string][]string{"job": {"api"}, "instance": {"a"}} // by Prometheus
		}
		for _, l := range m.Label {
			all[name][l.GetName()] = append(all[name][l.GetName()], l.GetValue())
		}
		if len(also) > 0 {
			all[name]["le"] = append(all[name]["le"], also...)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		t.Cleanup(func() { time.Sleep(time.Hour) }) // go-redis' last retries
		metrics, registry := redlockprom.New(), prometheus.NewRegistry()
		registry.MustRegister(metrics)
		happen(t, metrics.Hooks())
		families, err := registry.Gather()
		require.NoError(t, err)
		for _, f := range families {
			for _, m := range f.Metric {
				if m.Histogram == nil {
					add(f.GetName(), m)
					continue
				}
				add(f.GetName()+"_count", m)
				add(f.GetName()+"_sum", m)
				for range m.Histogram.Bucket {
					add(f.GetName()+"_bucket", m, "")
				}
			}
		}
	})
	// By redis_exporter, on the nodes.
	all["redis_evicted_keys_total"] = map[string][]string{"job": {"redlock-nodes"}, "instance": {"n1"}}
	return all
}

// happen locks, with contention, restarts and outages.
func happen(t *testing.T, hooks *redlock.Hooks) {
	const ttl = 10 * time.Second
	cluster := redlocktest.NewCluster(t, 3)
	rl, err := redlock.New(cluster.Clients(), &redlock.Options{Hooks: hooks})
	require.NoError(t, err)
	t.Cleanup(func() { _ = rl.Close() })
	m := rl.Mutex("k", redlock.WithRenewal())
	try := func() *redlock.Lock {
		lock, err := m.TryAcquire(t.Context())
		require.NoError(t, err)
		return lock
	}
	permit, err := rl.Semaphore("s", 2).TryAcquire(t.Context())
	require.NoError(t, err)
	require.NoError(t, permit.Release(t.Context()))
	lock := try()
	time.Sleep(ttl)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err = m.Acquire(ctx)
	require.ErrorIs(t, err, redlock.ErrHeld)
	require.NoError(t, lock.Release(t.Context()))

	cluster.Node(0).Stop()
	cluster.Node(0).Restart(redlocktest.LoseKeys) // barred from now on
	cluster.Node(1).SetError("OOM command not allowed")
	for barred := false; !barred; { // at first it may be the connection that has broken
		_, err = m.TryAcquire(t.Context())
		require.ErrorIs(t, err, redlock.ErrNoQuorum)
		var e *redlock.QuorumError
		require.ErrorAs(t, err, &e)
		time.Sleep(time.Millisecond)
		barred = slices.ContainsFunc(e.Outcomes, func(o redlock.Outcome) bool { return o.Vote == redlock.VoteBarred })
	}
	cluster.Node(1).SetError("")
	time.Sleep(time.Minute)
	lock = try()
	cluster.Node(0).Hang()
	cluster.Node(1).Hang()
	_, err = m.TryAcquire(t.Context())
	require.ErrorIs(t, err, redlock.ErrNoQuorum)
	require.Error(t, lock.Extend(t.Context(), ttl))
	time.Sleep(2 * ttl)
	synctest.Wait()
}

func parse(t *testing.T, q query) parser.Expr {
	e, err := parser.NewParser(parser.Options{}).ParseExpr(q.expr)
	require.NoError(t, err, "%s: %s", q.where, q.expr)
	return e
}

// Every name, every label and every value of a label in the files is one that a scrape shows.
func TestQueriesAskForWhatIsExported(t *testing.T) {
	metrics := exported(t)
	asked := make(map[string]bool)
	for _, q := range queries(t) {
		have := make(map[string]bool) // labels of any metric in the query
		parser.Inspect(parse(t, q), func(n parser.Node, _ []parser.Node) error {
			switch n := n.(type) {
			case *parser.VectorSelector:
				asked[n.Name] = true
				known, ok := metrics[n.Name]
				assert.True(t, ok, "%s: there is no metric %s", q.where, n.Name)
				for l := range known {
					have[l] = true
				}
				for _, m := range n.LabelMatchers {
					if m.Name == model.MetricNameLabel {
						continue
					}
					assert.Contains(t, known, m.Name, "%s: label of %s", q.where, n.Name)
					for _, value := range alternatives(m) {
						assert.Contains(t, known[m.Name], value, "%s: %s of %s", q.where, m.Name, n.Name)
					}
				}
			case *parser.AggregateExpr:
				for _, l := range n.Grouping {
					assert.True(t, anyHas(n.Expr, metrics, l), "%s: by %s", q.where, l)
				}
			}
			return nil
		})
		for _, m := range regexp.MustCompile(`\{\{ ?(?:\$labels\.)?(\w+) ?\}\}`).FindAllStringSubmatch(q.legend, -1) {
			assert.True(t, have[m[1]], "%s: {{%s}}", q.where, m[1])
		}
	}
	for name := range metrics {
		if strings.HasSuffix(name, "_sum") || strings.HasSuffix(name, "_count") {
			continue
		}
		assert.True(t, asked[name], "%s is exported, and shown nowhere", name)
	}
}

func alternatives(m *labels.Matcher) []string {
	if m.Type == labels.MatchRegexp {
		return strings.Split(m.Value, "|")
	}
	return []string{m.Value}
}

// anyHas reports whether a metric in the expression has the label.
func anyHas(e parser.Expr, metrics map[string]map[string][]string, label string) bool {
	found := false
	parser.Inspect(e, func(n parser.Node, _ []parser.Node) error {
		if s, ok := n.(*parser.VectorSelector); ok {
			_, ok = metrics[s.Name][label]
			found = found || ok
		}
		return nil
	})
	return found
}

func TestDashboard(t *testing.T) {
	d := readDashboard(t)
	var names []string
	for _, v := range d.Templating.List {
		names = append(names, "$"+v.Name)
	}
	text, err := os.ReadFile("dashboard.json")
	require.NoError(t, err)
	names = append(names, "$__rate_interval", "$__range", "$__all")
	for _, used := range regexp.MustCompile(`\$\{?\w+\}?`).FindAllString(string(text), -1) {
		assert.Contains(t, names, strings.NewReplacer("{", "", "}", "").Replace(used))
	}
	ids := make(map[int]bool)
	for i, p := range d.Panels {
		assert.False(t, ids[p.ID], "panel %s: id", p.Title)
		ids[p.ID] = true
		assert.NotEmpty(t, p.Title)
		assert.Equal(t, p.Type != "row", len(p.Says) > 15, "panel %s says what it shows", p.Title)
		assert.LessOrEqual(t, p.GridPos.X+p.GridPos.W, 24, p.Title)
		for _, o := range d.Panels[:i] {
			apart := p.GridPos.X >= o.GridPos.X+o.GridPos.W || o.GridPos.X >= p.GridPos.X+p.GridPos.W ||
				p.GridPos.Y >= o.GridPos.Y+o.GridPos.H || o.GridPos.Y >= p.GridPos.Y+p.GridPos.H
			assert.True(t, apart, "panels %s and %s overlap", p.Title, o.Title)
		}
	}
}

// An alert without a panel cannot be looked at: each metric that an alert asks for is on the dashboard.
func TestWhatAlertsAskForIsOnTheDashboard(t *testing.T) {
	var shown strings.Builder
	for _, p := range readDashboard(t).Panels {
		for _, target := range p.Targets {
			shown.WriteString(target.Expr + "\n")
		}
	}
	asked := 0
	for _, r := range readRules(t) {
		for _, metric := range regexp.MustCompile(`\bredis_\w+|\bredlock_\w+`).FindAllString(r.Expr, -1) {
			asked++
			assert.True(t, strings.Contains(shown.String(), metric+"{"), "%s: no panel shows %s", r.Alert, metric)
		}
	}
	assert.NotZero(t, asked)
}

func TestAlertsAreComplete(t *testing.T) {
	tested, err := os.ReadFile("alerts_test.yml")
	require.NoError(t, err)
	var names []string
	for _, r := range readRules(t) {
		assert.NotContains(t, names, r.Alert)
		names = append(names, r.Alert)
		assert.True(t, slices.Contains([]string{"critical", "warning", "info"}, r.Labels["severity"]), r.Alert)
		assert.NotEmpty(t, r.Annotations["summary"], r.Alert)
		assert.NotEmpty(t, r.Annotations["description"], r.Alert)
		page, anchor, _ := strings.Cut(strings.TrimPrefix(r.Annotations["runbook_url"], "https://github.com/quorumlock/redlock/blob/main/"), "#")
		runbook, err := os.ReadFile(filepath.Join("../..", page))
		require.NoError(t, err, r.Alert)
		assert.True(t, doccheck.HasAnchor(filepath.Join("../..", page), anchor), "%s: %s has no %s", r.Alert, page, anchor)
		assert.Contains(t, string(runbook), "`"+r.Alert+"`", "%s: what to do", r.Alert)
		if r.For != "" {
			_, err := time.ParseDuration(r.For)
			assert.NoError(t, err, r.Alert)
		}
		assert.Greater(t, strings.Count(string(tested), r.Alert), 1, "%s: that it is silent and that it fires", r.Alert)
	}
}

// When the alerts fire, and when they do not. Where promtool is not installed it is built, which takes a
// minute and a half of CPU time once.
func TestAlertsFire(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		promtool = filepath.Join(t.TempDir(), "promtool")
		build := exec.Command("go", "build", "-C", "../../tools/promtool", "-tags", "remove_all_sd", "-o", promtool, "github.com/prometheus/prometheus/cmd/promtool")
		out, err := build.CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	out, err := exec.Command(promtool, "test", "rules", "alerts_test.yml").CombinedOutput()
	require.NoError(t, err, "%s", out)
}
