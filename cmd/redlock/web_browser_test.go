package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/cmd/redlock/internal/web"
	"github.com/quorumlock/redlock/internal/testing/faultproxy"
	"github.com/quorumlock/redlock/internal/testing/realredis"
)

// patience is for a browser on a busy machine.
const patience = 30 * time.Second

// startBrowser starts a chromium that the test ends.
func startBrowser(t *testing.T) context.Context {
	t.Helper()
	var program string
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			program = path
			break
		}
	}
	if program == "" {
		if os.Getenv("REDLOCK_REQUIRE_CHROMIUM") != "" {
			t.Fatal("REDLOCK_REQUIRE_CHROMIUM is set, and there is no chromium")
		}
		t.Skip("no chromium: apt-get install chromium")
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(program),
		chromedp.NoSandbox, // as root it has none; the pages are ours
		chromedp.UserDataDir(t.TempDir()))
	ctx, end := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(end)
	ctx, cancel := chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	require.NoError(t, chromedp.Do(ctx))
	t.Cleanup(func() { _ = chromedp.Cancel(ctx) }) // waits for the browser's end
	return ctx
}

// tab is a page in the browser.
type tab struct {
	t   *testing.T
	ctx context.Context
	// close is called by the test's end at the latest. A browser opens six connections to a
	// server at most, and each page that is seen keeps one.
	close context.CancelFunc
}

type size struct{ width, height int64 }

var laptop = size{1280, 720}

func openTab(t *testing.T, browser context.Context, url string, s size, scheme string) *tab {
	t.Helper()
	ctx, cancel := chromedp.NewContext(browser)
	t.Cleanup(cancel)
	require.NoError(t, chromedp.Do(ctx)) // the tab lives as long as the context of its first call
	p := &tab{t, ctx, cancel}
	p.do(chromedp.EmulateViewport(s.width, s.height),
		chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
			_, err := cdp.Call(ctx, t, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
				Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}, {Name: "prefers-reduced-motion", Value: "reduce"}},
			})
			return err
		}),
		chromedp.Navigate(url))
	return p
}

func (p *tab) do(actions ...chromedp.Action[chromedp.Void]) {
	p.t.Helper()
	require.NoError(p.t, p.try(actions...))
}

func (p *tab) try(actions ...chromedp.Action[chromedp.Void]) error {
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	return chromedp.Do(ctx, actions...)
}

// ask evaluates an expression on the page.
func ask[T any](p *tab, js string) T {
	p.t.Helper()
	v, err := get(p, chromedp.Evaluate[T](js))
	require.NoError(p.t, err, js)
	return v
}

func get[T any](p *tab, a chromedp.Action[T]) (T, error) {
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	return chromedp.Run(ctx, a)
}

// until waits for an expression to be true on the page.
func (p *tab) until(js string, args ...any) {
	p.t.Helper()
	js = fmt.Sprintf(js, args...)
	if err := p.try(chromedp.Poll[chromedp.Void](js, chromedp.WithPollingInterval(20*time.Millisecond), chromedp.WithPollingTimeout(patience))); err != nil {
		p.t.Fatalf("%s is not so: %v\n%s", js, err, ask[string](p, `document.body.innerText`))
	}
}

func (p *tab) press(label string) {
	p.t.Helper()
	p.do(chromedp.Click(fmt.Sprintf(`//button[@aria-label=%q or text()=%q]`, label, label)))
}

func (p *tab) hears(text string) {
	p.t.Helper()
	p.until(`document.querySelector("#news").innerText.includes(%q)`, text)
}

func (p *tab) node(i int, state string) {
	p.t.Helper()
	p.until(`document.querySelector("#nodes").children[%d]?.dataset.state === %q`, i, state)
}

// shoot takes a picture for somebody to look at, where one is wanted.
func (p *tab) shoot(name string) {
	p.t.Helper()
	dir := os.Getenv("REDLOCK_SCREENSHOTS")
	if dir == "" {
		return
	}
	png, err := get(p, chromedp.CaptureScreenshot())
	require.NoError(p.t, err)
	require.NoError(p.t, os.WriteFile(filepath.Join(dir, name+".png"), png, 0o666))
}

// quick is too fast to be followed.
var quick = pace{
	work: span{100 * time.Millisecond, 200 * time.Millisecond},
	idle: span{50 * time.Millisecond, 200 * time.Millisecond},
	look: 50 * time.Millisecond,
}

// perform runs a stage for as long as the test does. In the end no update is lost.
func perform(t *testing.T, ttl time.Duration, p pace) *stage {
	t.Helper()
	s, err := newStage(4, ttl, p, web.Loopback)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-ended)
		made, value := s.counter.read()
		assert.Equal(t, made, value)
	})
	return s
}

// answers says whether a node does, to somebody who is new to it.
func (s *stage) answers(i int) bool {
	c := redis.NewClient(&redis.Options{
		Addr: s.addrs[i], MaxRetries: -1, DialTimeout: 200 * time.Millisecond, ReadTimeout: 200 * time.Millisecond, PoolSize: 1, DialerRetries: 1,
	})
	defer c.Close()
	return c.Ping(context.Background()).Err() == nil
}

type browserTest struct {
	name string
	test func(*testing.T, context.Context)
}

// browse runs tests one after the other in a browser of their own.
func browse(t *testing.T, tests ...browserTest) {
	t.Parallel()
	browser := startBrowser(t)
	for _, c := range tests {
		t.Run(c.name, func(t *testing.T) { c.test(t, browser) })
	}
}

func TestBrowserShowsWhatHappens(t *testing.T) {
	browse(t,
		browserTest{"every button of every node", everyButton},
		browserTest{"the keyboard alone", keyboardAlone},
		browserTest{"a paused holder does not write", pausedHolder},
		browserTest{"no majority, and back", noMajority},
		browserTest{"a page that is frozen catches up", frozenPage},
		browserTest{"the end", theEnd})
}

func TestBrowserLosesItsConnection(t *testing.T) {
	browse(t, browserTest{"and has it back", lostConnection})
}

func TestBrowserLooks(t *testing.T) {
	browse(t, browserTest{"at every size", looks}, browserTest{"200 locks of real servers", manyLocks})
}

func everyButton(t *testing.T, browser context.Context) {
	s := perform(t, time.Second, quick)
	p := openTab(t, browser, s.server.URL(), laptop, "light")
	for i := range demoNodes {
		name := nodeName(i)
		p.node(i, "up")
		for _, fault := range []struct{ button, state, says string }{
			{"Kill", "kill", "is killed"}, {"Hang", "hang", "hangs"}, {"Cut off", "cut off", "is cut off"},
		} {
			p.press(fault.button + " " + name)
			p.node(i, fault.state)
			p.hears(sentence(name) + " " + fault.says)
			assert.False(t, s.answers(i), "%s %s", name, fault.state)
			p.press("Bring back " + name)
			p.until(`["up", "barred"].includes(document.querySelector("#nodes").children[%d].dataset.state)`, i)
			// On a busy machine a first answer may take longer than a client waits.
			assert.Eventually(t, func() bool { return s.answers(i) }, patience, 20*time.Millisecond, "%s after %s", name, fault.state)
		}
		s.cluster.Node(i).Set("somebody's", "key", 0)
		p.press("Flush " + name)
		p.hears(sentence(name) + " is flushed")
		p.node(i, "barred")
		assert.Empty(t, s.cluster.Node(i).Get("somebody's"))
		p.node(i, "up") // once it may vote again
		p.hears(sentence(name) + " may vote again")
	}
	p.press("Pause the holder")
	p.until(`document.querySelector('#workers [data-state="paused"]') !== null`)
	p.until(`Number(document.querySelector("#without-lost").textContent) > 0`)
	assert.Equal(t, "0", ask[string](p, `document.querySelector("#with-lost").textContent`))
}

func keyboardAlone(t *testing.T, browser context.Context) {
	s := perform(t, webTTL, quick)
	p := openTab(t, browser, s.server.URL(), laptop, "dark")
	p.node(4, "up")
	focused := func() string {
		return ask[string](p, `document.activeElement.ariaLabel || document.activeElement.textContent`)
	}
	reach := func(label string) {
		for range 60 {
			if focused() == label {
				return
			}
			p.do(chromedp.KeyEvent(kb.Tab))
		}
		t.Fatalf("the tab key does not lead to %q", label)
	}
	reach("Pause the holder") // it comes before the nodes
	reach("Hang node 3")
	assert.NotEqual(t, "none", ask[string](p, `getComputedStyle(document.activeElement).outlineStyle`), "the focus shows")
	p.do(chromedp.KeyEvent(kb.Enter))
	p.node(2, "hang")
	assert.Equal(t, "Hang node 3", focused(), "the focus stays where it was")
	p.until(`document.querySelector("#aloud").textContent.includes("Node 3 hangs")`) // for screen readers
	reach("Bring back node 3")
	p.do(chromedp.KeyEvent(" "))
	p.node(2, "up")

	// What a screen reader makes of the page: each button has a name that says all, each section
	// and list a heading.
	names := ask[[]string](p, `[...document.querySelectorAll("button")].map(b => b.ariaLabel || b.textContent)`)
	assert.Len(t, names, 5*demoNodes+2)
	seen := make(map[string]bool)
	for _, n := range names {
		assert.False(t, seen[n], "two buttons are called %q", n)
		seen[n] = true
	}
	assert.Zero(t, ask[int](p, `[...document.querySelectorAll("section")].filter(s => !document.getElementById(s.getAttribute("aria-labelledby"))).length`))
}

func pausedHolder(t *testing.T, browser context.Context) {
	s := perform(t, time.Second, pace{work: span{400 * time.Millisecond, 500 * time.Millisecond}, idle: quick.idle, look: quick.look})
	p := openTab(t, browser, s.server.URL(), laptop, "light")
	p.until(`document.querySelector('#workers [data-state="holding"]') !== null`)
	p.press("Pause the holder")
	p.hears("is paused for 2.0 s, longer than its lease")
	p.until(`document.querySelector('#workers [data-state="late"]') !== null`)
	// Another has the lock while the first still sleeps.
	p.until(`document.querySelector('#workers [data-state="late"]') && document.querySelector('#workers [data-state="holding"]')`)
	p.hears("sees that its lease is over, and does not write")
	assert.Equal(t, "0", ask[string](p, `document.querySelector("#with-lost").textContent`))
}

func noMajority(t *testing.T, browser context.Context) {
	s := perform(t, webTTL, quick)
	p := openTab(t, browser, s.server.URL(), laptop, "light")
	for i, b := range []string{"Kill", "Hang", "Cut off"} {
		p.press(b + " " + nodeName(i))
	}
	p.hears("3 of 5 nodes are away, so there is no majority")
	p.until(`document.querySelector("#verdict").textContent.startsWith("No majority: 2 of 5")`)
	made, _ := s.counter.read()
	// A button that means nothing at present does nothing, and whoever asks all the same is told why.
	assert.Equal(t, "true", ask[string](p, `document.querySelector('[aria-label="Flush node 2"]').ariaDisabled`))
	p.do(chromedp.Evaluate[chromedp.Void](`fetch("do", {method: "POST", headers: {"Content-Type": "application/json"}, body: '{"do":"flush","node":1}'}).then(r => r.text()).then(t => window.answer = t)`))
	p.until(`window.answer?.includes("Node 2 hangs. Bring it back first.")`)
	p.press("Bring back node 3")
	p.until(`Number(document.querySelector("#with-made").textContent) > %d`, made)
	p.press("Bring back node 2")
	p.press("Bring back node 1")
	p.hears("Node 1 is back, without its keys")
	p.node(0, "up")
}

func frozenPage(t *testing.T, browser context.Context) {
	s := perform(t, webTTL, quick)
	p := openTab(t, browser, s.server.URL(), laptop, "light")
	p.until(`Number(document.querySelector("#with-made").textContent) > 2`)
	p.press("Freeze the page")
	p.until(`document.querySelector("#freeze").ariaPressed === "true"`)
	before := ask[string](p, `document.querySelector("main").innerText`)
	now, _ := s.counter.read()
	require.Eventually(t, func() bool { made, _ := s.counter.read(); return made > now+2 }, patience, 10*time.Millisecond)
	assert.Equal(t, before, ask[string](p, `document.querySelector("main").innerText`))
	p.press("Freeze the page")
	p.until(`Number(document.querySelector("#with-made").textContent) > %d`, now+1)
	p.hears(fmt.Sprintf("writes %d and", now+1)) // meanwhile
}

// lostConnection: what was missed is there once the connection is, and an address that leads
// nowhere, or to somebody who does not answer, is said to.
func lostConnection(t *testing.T, browser context.Context) {
	s := perform(t, webTTL, quick)
	u, err := url.Parse(s.server.URL())
	require.NoError(t, err)
	proxy := faultproxy.New(func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", u.Host)
	})
	t.Cleanup(proxy.Close)
	addr, err := proxy.Listen()
	require.NoError(t, err)
	p := openTab(t, browser, "http://"+addr+u.Path, laptop, "light")
	p.until(`Number(document.querySelector("#with-made").textContent) > 1`)
	const banner = `document.querySelector("#link").textContent`
	back := func() {
		now, _ := s.counter.read()
		p.until(`Number(document.querySelector("#with-made").textContent) > %d`, now)
		assert.Empty(t, ask[string](p, banner))
		assert.False(t, ask[bool](p, `document.body.classList.contains("stale")`))
		p.hears(fmt.Sprintf("writes %d and", now)) // which it may have missed
	}

	proxy.Refuse()
	p.until(banner + `.includes("No connection to the command.")`)
	p.press("Kill node 1") // goes nowhere, and nothing breaks
	now, _ := s.counter.read()
	require.Eventually(t, func() bool { made, _ := s.counter.read(); return made > now+2 }, patience, 10*time.Millisecond)
	proxy.Heal()
	back()

	proxy.Blackhole() // nobody says that the connection is dead
	p.until(banner + `.includes("No connection to the command.")`)
	proxy.Heal()
	back()
	news := ask[[]string](p, `[...document.querySelectorAll("#news span")].map(e => e.textContent).filter(t => t.includes("writes"))`)
	assert.Len(t, slices.Compact(news), len(news), "nothing is told twice")
}

func theEnd(t *testing.T, browser context.Context) {
	s, err := newStage(2, time.Second, quick, web.Loopback)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- s.run(ctx) }()
	p := openTab(t, browser, s.server.URL(), laptop, "light")
	p.until(`Number(document.querySelector("#with-made").textContent) > 0`)
	cancel()
	p.until(`document.querySelector("#link").textContent.startsWith("The command has ended.")`)
	require.NoError(t, <-ended, "a viewer does not keep the command from ending")
}

// manyLocks: watch --web shows what real servers have, and neither a password nor a token.
func manyLocks(t *testing.T, browser context.Context) {
	const locks, waiters = 200, 3
	servers := realredis.StartN(t, 5, realredis.Password("hunter2"))
	var addrs []string
	for _, s := range servers {
		addrs = append(addrs, "redis://:hunter2@"+s.Addr())
	}
	rl, err := redlock.Open(t.Context(), addrs, &redlock.Options{TTL: time.Minute, Owner: "app1:7", KeyPrefix: "shop:"})
	require.NoError(t, err)
	t.Cleanup(func() { _ = rl.Close() })
	var tokens []string
	for i := range locks {
		lock, err := rl.Mutex(fmt.Sprintf("orders:%d", i)).Acquire(t.Context())
		require.NoError(t, err)
		tokens = append(tokens, lock.Token())
	}
	lock, err := rl.Mutex("ledger", redlock.WithFencing()).Acquire(t.Context())
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var waiting sync.WaitGroup
	for range waiters {
		waiting.Go(func() { _, _ = rl.Mutex("orders:42").Acquire(ctx) })
	}
	t.Cleanup(func() { cancel(); waiting.Wait() })
	client := redis.NewClient(servers[0].Options())
	require.NoError(t, client.Set(t.Context(), "shop:cart", "no lock", 0).Err())
	require.NoError(t, client.Close())

	config := filepath.Join(t.TempDir(), "config")
	configured, err := json.Marshal(map[string]any{"addrs": addrs, "key_prefix": "shop:"})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(config, configured, 0o600))
	var out lockedBuffer
	ctx, end := context.WithCancel(t.Context())
	ended := make(chan int, 1)
	go func() {
		ended <- execute(ctx, []string{"watch", "--web", "--config", config, "--interval", "100ms"}, &out, &out)
	}()
	t.Cleanup(func() { end(); require.Equal(t, exitOK, <-ended, out.String()) })
	require.Eventually(t, func() bool { return strings.Contains(out.String(), "Ctrl-C") }, patience, time.Millisecond)
	address := regexp.MustCompile(`http://\S+`).FindString(out.String())

	p := openTab(t, browser, address, laptop, "light")
	p.until(`document.querySelectorAll("#locks tbody tr").length === %d`, locks+1)
	p.until(`document.querySelector("#verdict").textContent === "5 of 5 nodes answer, 3 are enough. %d locks held, 1 of them awaited."`, locks+1)
	const row = `[...document.querySelectorAll("#locks tbody tr")].find(r => r.firstChild.textContent === %q)?.innerText`
	p.until(row+`.includes("3: app1:7 for ")`, "orders:42")
	p.until(row+`.includes(%q)`, "ledger", fmt.Sprint(lock.Fence()))
	p.until(row+` === undefined`, "cart")
	p.until(`document.querySelector("#checked").textContent.endsWith(" s ago")`)

	// Of 200 locks the one that matters is found.
	p.do(chromedp.SendKeys("#filter", "orders:42"))
	p.until(`[...document.querySelectorAll("#locks tbody tr")].filter(r => !r.hidden).length === 1`)
	p.do(chromedp.SendKeys("#filter", strings.Repeat(kb.Backspace, len("orders:42"))))
	p.do(chromedp.Click("#awaited"))
	p.until(`[...document.querySelectorAll("#locks tbody tr")].filter(r => !r.hidden).length === 1`)
	p.do(chromedp.Click("#awaited"))

	// It comes before the rest even so.
	assert.Equal(t, "orders:42", ask[string](p, `document.querySelector("#locks tbody th").textContent`))

	// A lock that is released goes, one that is taken comes.
	require.NoError(t, lock.Release(t.Context()))
	p.until(row+` === undefined`, "ledger")
	_, err = rl.Mutex("new").Acquire(t.Context())
	require.NoError(t, err)
	p.until(row+`.includes("app1:7")`, "new")
	for name, size := range sizes {
		for _, scheme := range []string{"light", "dark"} {
			p := openTab(t, browser, address, size, scheme)
			p.until(`document.querySelectorAll("#locks tbody tr").length === %d`, locks+1)
			assert.LessOrEqual(t, ask[int](p, `document.documentElement.scrollWidth`), int(size.width), name)
			assert.Empty(t, ask[[]string](p, unreadable), "%s %s", name, scheme)
			p.shoot(strings.Join([]string{"watch", name, scheme}, "-"))
			p.close()
		}
	}

	servers[1].Kill()
	require.NoError(t, servers[3].Pause())
	p.until(`document.querySelector("#verdict").textContent.startsWith("3 of 5 nodes answer")`)
	p.until(row+`.includes("3 of 5")`, "orders:42")
	p.hears("does not answer")
	p.until(`document.querySelector("#nodes").innerText.includes("no answer in time")`)
	p.shoot("watch-nodes-down")
	servers[2].Kill()
	p.until(`document.querySelector("#verdict").textContent.startsWith("No quorum: 2 of 5 nodes answer")`)
	p.until(row+`.includes("perhaps app1:7")`, "orders:42")
	require.NoError(t, servers[3].Resume())

	text := ask[string](p, `document.documentElement.outerHTML + JSON.stringify(performance.getEntries())`) + p.streamed(address)
	assert.NotContains(t, text, "hunter2")
	for _, token := range tokens {
		assert.NotContains(t, text, token)
	}
}

// streamed is what the page gets until it has a state.
func (p *tab) streamed(address string) string {
	p.t.Helper()
	answer, err := http.Get(address + "events")
	require.NoError(p.t, err)
	defer answer.Body.Close()
	var all strings.Builder
	for in := bufio.NewReader(answer.Body); !strings.Contains(all.String(), `"locks":[{`); {
		line, err := in.ReadString('\n')
		require.NoError(p.t, err)
		all.WriteString(line)
	}
	return all.String()
}

// unreadable lists texts whose contrast with what is behind them is below 4.5.
const unreadable = `(() => {
	const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
	const rgb = c => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = c; canvas.fillRect(0, 0, 1, 1); return [...canvas.getImageData(0, 0, 1, 1).data]; };
	const light = c => { const [r, g, b] = c.map(v => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126*r + 0.7152*g + 0.0722*b; };
	const bad = [];
	const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
	for (let n; n = walk.nextNode();) {
		const e = n.parentElement;
		if (!n.textContent.trim() || !e.checkVisibility() || e.closest(".aloud, [aria-disabled=true]")) continue;
		let back = e;
		while (back && rgb(getComputedStyle(back).backgroundColor)[3] < 255) back = back.parentElement;
		const a = light(rgb(getComputedStyle(e).color)), b = light(rgb(back ? getComputedStyle(back).backgroundColor : "white"));
		const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
		if (contrast < 4.5) bad.push(contrast.toFixed(2) + " " + e.className + ": " + n.textContent);
	}
	return bad;
})()`

var sizes = map[string]size{"phone": {390, 844}, "small-phone": {320, 640}, "tablet": {800, 1100}, "laptop": {1024, 700}, "desk": {1280, 900}, "wide": {1920, 1080}}

func looks(t *testing.T, browser context.Context) {
	p := quick
	if os.Getenv("REDLOCK_SCREENSHOTS") != "" {
		p = watchable
	}
	s := perform(t, webTTL, p)
	for name, size := range sizes {
		for _, scheme := range []string{"light", "dark"} {
			p := openTab(t, browser, s.server.URL(), size, scheme)
			p.node(4, "up")
			p.until(`document.querySelector('#workers [data-state="holding"]') !== null`)
			p.fits(name+" "+scheme, size)
			assert.Empty(t, ask[[]string](p, unreadable), "%s %s", name, scheme)
			p.shoot(strings.Join([]string{"demo", name, scheme}, "-"))
			p.close()
		}
	}
	require.NoError(t, s.do(web.Request{Do: "kill", Node: 1}))
	require.NoError(t, s.do(web.Request{Do: "hang", Node: 3}))
	readme := openTab(t, browser, s.server.URL(), sizes["laptop"], "light")
	readme.until(`document.querySelector("#verdict").textContent.includes("has the lock: 3 of 5")`)
	readme.shoot("readme")
	readme.close()
	require.NoError(t, s.do(web.Request{Do: "flush", Node: 4}))
	require.NoError(t, s.do(web.Request{Do: "pause"}))
	for _, scheme := range []string{"light", "dark"} {
		for name, size := range sizes {
			p := openTab(t, browser, s.server.URL(), size, scheme)
			p.node(1, "kill")
			p.fits("faults "+name, size)
			assert.Empty(t, ask[[]string](p, unreadable), "%s %s with faults", name, scheme)
			p.shoot(strings.Join([]string{"faults", name, scheme}, "-"))
			p.close()
		}
	}
}

// fits: nothing sticks out to the right, and where there is room for it, what explains the
// page is seen without scrolling.
func (p *tab) fits(name string, s size) {
	p.t.Helper()
	assert.LessOrEqual(p.t, ask[int](p, `document.documentElement.scrollWidth`), int(s.width), name)
	if s.width < 1024 {
		return
	}
	for _, e := range []string{"h1", "#verdict", "#workers", "#nodes", "table", "#news"} {
		assert.LessOrEqual(p.t, ask[float64](p, fmt.Sprintf(`document.querySelector(%q).getBoundingClientRect().bottom`, e)), float64(s.height), "%s: %s", name, e)
	}
	assert.Greater(p.t, ask[float64](p, `document.querySelector("#news").getBoundingClientRect().bottom`), 0.9*float64(s.height), "%s: what happens has the rest of the window", name)
}
