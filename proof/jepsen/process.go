package jepsen

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// process is one life of a client.
type process struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	exited chan struct{}
	killed bool // by us; guarded by the seat's mutex, as is ending
	ending bool // asked to

	mu  sync.Mutex
	now tally
}

// spawn starts a client process. It ends with us, however we end.
func spawn(program string, j job, stderr io.Writer) (*process, error) {
	text, err := json.Marshal(j)
	if err != nil {
		return nil, err
	}
	p := &process{cmd: exec.Command(program), exited: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), clientEnv+"="+string(text))
	p.cmd.Stderr = stderr
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	started := make(chan error)
	go func() {
		// The kernel kills the child with the thread that started it, so the thread must live as long as the child.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err != nil {
			return
		}
		p.listen(out)
		_ = p.cmd.Wait() // how it ended is told by the state
		close(p.exited)
	}()
	return p, <-started
}

func (p *process) listen(out io.Reader) {
	for lines := bufio.NewScanner(out); lines.Scan(); {
		var t tally
		if json.Unmarshal(lines.Bytes(), &t) == nil {
			p.mu.Lock()
			p.now = t
			p.mu.Unlock()
		}
	}
}

func (p *process) tally() tally {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.now
}

// say tells the process something. One that is gone cannot hear.
func (p *process) say(line string) { _, _ = io.WriteString(p.in, line+"\n") }

func (p *process) alive() bool {
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// stopped reports whether the process is stopped.
func (p *process) stopped() bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		return false
	}
	fields := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	return len(fields) > 0 && (fields[0][0] == 'T' || fields[0][0] == 't')
}

// signal has no effect on a process that is gone.
func (p *process) signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) }

func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.exited
}

// seat is a client over all of its lives.
type seat struct {
	job      job
	programs programs
	stderr   io.Writer

	mu    sync.Mutex
	proc  *process
	past  tally // of earlier lives
	lives []job
}

func (s *seat) start() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc != nil {
		s.past.add(s.proc.tally())
	}
	s.job.Life++
	program, j := s.programs.of(s.job)
	p, err := spawn(program, j, s.stderr)
	if err != nil {
		return err
	}
	s.proc = p
	s.lives = append(s.lives, s.job)
	return nil
}

func (s *seat) process() *process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proc
}

func (s *seat) kill() {
	p := s.process()
	s.mu.Lock()
	p.killed = true
	s.mu.Unlock()
	p.kill()
}

func (s *seat) tally() tally {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.past
	t.add(s.proc.tally())
	return t
}

// died tells of a process that ended though nobody wanted it to.
func (s *seat) died() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc.alive() || s.proc.killed || s.proc.ending {
		return ""
	}
	return fmt.Sprintf("client %d, life %d, ended by itself: %v", s.job.Client, s.job.Life, s.proc.cmd.ProcessState)
}

// end asks the process to finish what it does, and kills it if it does not within d.
func (s *seat) end(d time.Duration) error {
	p := s.process()
	s.mu.Lock()
	p.ending = true
	s.mu.Unlock()
	p.signal(syscall.SIGCONT)
	p.say("end")
	timer := time.NewTimer(d)
	defer timer.Stop()
	// A client may have been told to stop itself just before.
	wake := time.NewTicker(50 * time.Millisecond)
	defer wake.Stop()
	for {
		select {
		case <-p.exited:
			if st := p.cmd.ProcessState; !p.killed && !st.Success() {
				return fmt.Errorf("client %d, life %d: %v", s.job.Client, s.job.Life, st)
			}
			return nil
		case <-wake.C:
			p.signal(syscall.SIGCONT)
		case <-timer.C:
			p.kill()
			return fmt.Errorf("client %d, life %d, did not end within %v and was killed", s.job.Client, s.job.Life, d)
		}
	}
}

// complaints keeps what clients write to their standard error, as far as anybody will read it.
type complaints struct {
	mu   sync.Mutex
	text strings.Builder
}

func (t *complaints) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.text.Len() < 64<<10 {
		t.text.Write(b)
	}
	return len(b), nil
}

func (t *complaints) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.String()
}
