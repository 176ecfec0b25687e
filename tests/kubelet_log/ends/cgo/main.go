// Starts threads until there is no room for another one.
package main

import "C"

import (
	"runtime"
	"time"
)

func main() {
	for {
		go func() {
			runtime.LockOSThread()
			time.Sleep(time.Hour)
		}()
		time.Sleep(time.Millisecond)
	}
}
