//go:build !linux

package main

func preciseTimers() (stop func()) { return func() {} }
