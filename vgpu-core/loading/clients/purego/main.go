// c/client.c's questions by purego, without cgo: ORDER LIMIT CUDA NVML REAL COMPAT.
package main

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"

	"github.com/ebitengine/purego"
)

const granule = 2 << 20

func open(path string) uintptr {
	library, err := purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_GLOBAL)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return library
}

func useCUDA(path string, limit uint64) string {
	cuda := open(path)
	var initialise func(uint32) int32
	var retain func(*uintptr, int32) int32
	var current func(uintptr) int32
	var info func(*uint64, *uint64) int32
	var allocate func(*uint64, uint64) int32
	purego.RegisterLibFunc(&initialise, cuda, "cuInit")
	purego.RegisterLibFunc(&retain, cuda, "cuDevicePrimaryCtxRetain")
	purego.RegisterLibFunc(&current, cuda, "cuCtxSetCurrent")
	purego.RegisterLibFunc(&info, cuda, "cuMemGetInfo_v2")
	purego.RegisterLibFunc(&allocate, cuda, "cuMemAlloc_v2")
	var context uintptr
	var free, total uint64
	result := initialise(0)
	if result == 0 {
		result = retain(&context, 0)
	}
	if result == 0 {
		result = current(context)
	}
	if result == 0 {
		result = info(&free, &total)
	}
	says := fmt.Sprintf("%d %d", result, total)
	for _, size := range []uint64{limit + granule, limit / 2, limit/2 + granule} {
		answer := int32(-1)
		if result == 0 {
			var pointer uint64
			answer = allocate(&pointer, size)
		}
		says += fmt.Sprintf(" %d", answer)
	}
	return says
}

func useNVML(path string) string {
	nvml := open(path)
	var initialise func() int32
	var handle func(uint32, *uintptr) int32
	var info func(uintptr, *[3]uint64) int32
	purego.RegisterLibFunc(&initialise, nvml, "nvmlInit_v2")
	purego.RegisterLibFunc(&handle, nvml, "nvmlDeviceGetHandleByIndex_v2")
	purego.RegisterLibFunc(&info, nvml, "nvmlDeviceGetMemoryInfo")
	var device uintptr
	var memory [3]uint64
	result := initialise()
	if result == 0 {
		result = handle(0, &device)
	}
	if result == 0 {
		result = info(device, &memory)
	}
	return fmt.Sprintf("%d %d %d", result, memory[0], memory[2])
}

func main() {
	runtime.LockOSThread() // A context is current in a thread.
	order, cuda, nvml, real, compat := os.Args[1], os.Args[3], os.Args[4], os.Args[5], os.Args[6]
	limit, _ := strconv.ParseUint(os.Args[2], 10, 64)
	switch order {
	case "path":
		open(real)
	case "compat":
		open(compat)
	case "nvml":
		useNVML(nvml)
	}
	says := useCUDA(cuda, limit)
	fmt.Printf("cuda %s nvml %s\n", says, useNVML(nvml))
	io.Copy(io.Discard, os.Stdin)
}
