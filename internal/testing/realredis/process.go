package realredis

import (
	"os"
	"os/exec"
	"runtime"
	"time"
)

// process is one run of the server binary.
type process struct {
	*os.Process
	state  *os.ProcessState // valid once exited is closed
	exited chan struct{}
}

// spawn starts the command and reaps it when it ends.
func spawn(cmd *exec.Cmd) (*process, error) {
	cmd.SysProcAttr = procAttr()
	p := &process{exited: make(chan struct{})}
	started := make(chan error)
	go func() {
		// The kernel kills the child when the thread which created it ends,
		// not when the process does, and Go ends threads as it likes. So the
		// thread stays locked to this goroutine, and the goroutine stays
		// until the child is gone.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		_ = cmd.Wait() // how it ended is told by the state
		// A server that dies leaves the child alone which it forked to write
		// a file; that one would go on writing into the directory.
		killGroup(cmd.Process.Pid)
		p.state = cmd.ProcessState
		close(p.exited)
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	p.Process = cmd.Process
	return p, nil
}

func (p *process) alive() bool {
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// kill works on a stopped process, too.
func (p *process) kill() {
	_ = p.Kill() // fails only if it has ended already
	<-p.exited
}

func (p *process) cpu() (time.Duration, error) {
	if p.alive() {
		if d, err := cpuTime(p.Pid); err == nil || p.alive() {
			return d, err
		}
	}
	<-p.exited
	return p.state.UserTime() + p.state.SystemTime(), nil
}
