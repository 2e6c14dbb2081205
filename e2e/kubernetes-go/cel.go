// Compiles a device selector and matches it with a device.

package main

import (
	"context"
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/cel"
)

type expression struct {
	Expression string     `json:"expression"`
	Device     *celDevice `json:"device"`
}

type celDevice struct {
	Driver                   string                                 `json:"driver"`
	AllowMultipleAllocations bool                                   `json:"allowMultipleAllocations"`
	Attributes               map[string]resourceapi.DeviceAttribute `json:"attributes"`
	Capacity                 map[string]string                      `json:"capacity"`
}

type verdict struct {
	Compiles bool   `json:"compiles"`
	Result   *bool  `json:"result,omitempty"`
	Cost     uint64 `json:"cost"`
	// The worst case that Kubernetes computes at compile time; it refuses a selector for it only at admission.
	Estimate uint64 `json:"estimate"`
	Error    string `json:"error,omitempty"`
	// Kubernetes' packages panicked, so there is no answer to compare with.
	Panics bool `json:"panics,omitempty"`
}

func celReply(q *expression) (said verdict) {
	defer func() {
		if why := recover(); why != nil {
			said = verdict{Panics: true, Error: fmt.Sprint(why)}
		}
	}()
	features := cel.Features{EnableConsumableCapacity: true}
	compiled := cel.GetCompiler(features).CompileCELExpression(q.Expression, cel.Options{})
	if compiled.Error != nil {
		return verdict{Error: compiled.Error.Detail}
	}
	said = verdict{Compiles: true, Estimate: compiled.MaxCost}
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

func convert(d *celDevice) (cel.Device, error) {
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
