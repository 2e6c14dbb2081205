// Answers, with Kubernetes' own compiler, what a device selector does.
//
//	{"expression": "...", "device": {...}} ─► compile ─► match ─► {"compiles": ..., "result": ..., "cost": ..., "error": "..."}
//
// One line of JSON in, one line out, until standard input ends.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/cel"
)

type question struct {
	Expression string  `json:"expression"`
	Device     *device `json:"device"`
}

type device struct {
	Driver                   string                                 `json:"driver"`
	AllowMultipleAllocations bool                                   `json:"allowMultipleAllocations"`
	Attributes               map[string]resourceapi.DeviceAttribute `json:"attributes"`
	Capacity                 map[string]string                      `json:"capacity"`
}

type answer struct {
	Compiles bool   `json:"compiles"`
	Result   *bool  `json:"result,omitempty"`
	Cost     uint64 `json:"cost"`
	// The worst case that Kubernetes computes at compile time; it refuses a selector for it only at admission.
	Estimate uint64 `json:"estimate"`
	Error    string `json:"error,omitempty"`
	// Kubernetes' packages can panic: nobody can agree with that.
	Panics bool `json:"panics,omitempty"`
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 64<<20)
	out := bufio.NewWriter(os.Stdout)
	for in.Scan() {
		var q question
		if err := json.Unmarshal(in.Bytes(), &q); err != nil {
			return fmt.Errorf("question %q: %w", in.Text(), err)
		}
		text, err := json.Marshal(reply(q))
		if err != nil {
			return err
		}
		if _, err := out.Write(append(text, '\n')); err != nil {
			return err
		}
		if err := out.Flush(); err != nil {
			return err
		}
	}
	return in.Err()
}

func reply(q question) (said answer) {
	defer func() {
		if why := recover(); why != nil {
			said = answer{Panics: true, Error: fmt.Sprint(why)}
		}
	}()
	features := cel.Features{EnableConsumableCapacity: true}
	compiled := cel.GetCompiler(features).CompileCELExpression(q.Expression, cel.Options{})
	if compiled.Error != nil {
		return answer{Error: compiled.Error.Detail}
	}
	said = answer{Compiles: true, Estimate: compiled.MaxCost}
	if q.Device == nil {
		return said
	}
	input, err := convert(q.Device)
	if err != nil {
		said.Error = err.Error()
		return said
	}
	result, details, err := compiled.DeviceMatches(context.Background(), input)
	if details != nil && details.ActualCost() != nil {
		said.Cost = *details.ActualCost()
	}
	if err != nil {
		said.Error = err.Error()
		return said
	}
	said.Result = &result
	return said
}

func convert(d *device) (cel.Device, error) {
	input := cel.Device{
		Driver:                   d.Driver,
		AllowMultipleAllocations: &d.AllowMultipleAllocations,
		Attributes:               map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{},
		Capacity:                 map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{},
	}
	for name, value := range d.Attributes {
		input.Attributes[resourceapi.QualifiedName(name)] = value
	}
	for name, text := range d.Capacity {
		value, err := resource.ParseQuantity(text)
		if err != nil {
			return cel.Device{}, fmt.Errorf("capacity %s: %w", name, err)
		}
		input.Capacity[resourceapi.QualifiedName(name)] = resourceapi.DeviceCapacity{Value: value}
	}
	return input, nil
}
