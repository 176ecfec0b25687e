// Ends as kubelets end: its argument says how.
package main

import (
	"errors"
	"fmt"
	"log"
	"os"
	"runtime/debug"
	"strings"
	"sync"
	"time"
)

// line writes as klog does.
func line(severity, text string) {
	now := time.Now()
	fmt.Fprintf(os.Stderr, "%s%s %7d ends.go:1] %s\n", severity, now.Format("0102 15:04:05.000000"), os.Getpid(), text)
}

func recovered() {
	defer func() {
		line("E", fmt.Sprintf("Observed a panic: %v\n%s", recover(), debug.Stack()))
		panic(errors.New("the second\n\nhas three lines"))
	}()
	panic("the first")
}

func deep(n int) int {
	return deep(n+1) + 1
}

func main() {
	line("I", `"Kubelet version" kubeletVersion="v1.36.2"`)
	line("E", `"Container runtime network not ready" networkReady="false"`)
	for i := 0; i < 20; i++ {
		go func() { select {} }()
	}
	switch os.Args[1] {
	case "panic":
		panic("one line")
	case "recovered":
		recovered()
	case "nil":
		var nobody *log.Logger
		nobody.Print("x")
	case "error":
		panic(fmt.Errorf("cannot go on: %w", errors.New("unknown gate: X")))
	case "wait":
		fmt.Println("ready")
		time.Sleep(time.Hour)
	case "memory":
		var all [][]byte
		for {
			all = append(all, make([]byte, 64<<20))
		}
	case "deadlock":
		var lock sync.Mutex
		lock.Lock()
		lock.Lock()
	case "maps":
		seen := map[int]int{}
		for i := 0; i < 8; i++ {
			go func() {
				for {
					seen[1]++
				}
			}()
		}
		time.Sleep(time.Minute)
	case "stack":
		debug.SetMaxStack(1 << 20)
		deep(0)
	case "exit":
		line("E", `"command failed" err="failed to run Kubelet: the moon is full"`)
		var done sync.WaitGroup
		done.Add(1)
		go func() {
			line("I", `"Caches populated" type="*v1.Node"`)
			line("E", `"Unhandled Error" err="somebody else's"`)
			done.Done()
		}()
		done.Wait()
		os.Exit(1)
	case "lines":
		line("E", "\"command failed\" err=<\n\tfailed to validate kubelet configuration, error: [a,\n\tb], path: x\n >")
		os.Exit(1)
	case "fatalf":
		log.Fatalf("cannot bind: %s", strings.Repeat("x", 3))
	}
}
