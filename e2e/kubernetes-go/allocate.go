// Decides whether claims fit on a node: NewAllocator, Allocate. {"timeout": true} means that there was no answer in
// time.

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
)

const patience = 5 * time.Second

type question struct {
	Features           []string                                        `json:"features"`
	Node               v1.Node                                         `json:"node"`
	Claims             []*resourceapi.ResourceClaim                    `json:"claims"`
	Classes            []*resourceapi.DeviceClass                      `json:"classes"`
	Slices             []*resourceapi.ResourceSlice                    `json:"slices"`
	AllocatedDevices   []string                                        `json:"allocatedDevices"`
	AllocatedShared    []string                                        `json:"allocatedShared"`
	AggregatedCapacity map[string]map[resourceapi.QualifiedName]string `json:"aggregatedCapacity"`
}

type answer struct {
	Results []resourceapi.AllocationResult `json:"results"`
	Error   string                         `json:"error,omitempty"`
	Timeout bool                           `json:"timeout,omitempty"`
}

func allocateReply(q *question) (a answer) {
	// Objects that the API server would refuse can make it panic; that is treated as an ordinary error.
	defer func() {
		if problem := recover(); problem != nil {
			a = answer{Error: fmt.Sprintf("panic: %v", problem)}
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	results, err := allocate(ctx, q)
	switch {
	case err == nil:
		return answer{Results: results}
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return answer{Timeout: true}
	case err.Error() == "":
		return answer{Error: "refused without a word"}
	default:
		return answer{Error: err.Error()}
	}
}

func allocate(ctx context.Context, q *question) ([]resourceapi.AllocationResult, error) {
	features, err := switches(q.Features)
	if err != nil {
		return nil, err
	}
	state, err := inUse(q)
	if err != nil {
		return nil, err
	}
	cache := cel.NewCache(100, cel.Features{EnableConsumableCapacity: features.ConsumableCapacity})
	allocator, err := structured.NewAllocator(ctx, features, *state, classes(q.Classes), q.Slices, cache)
	if err != nil {
		return nil, err
	}
	return allocator.Allocate(ctx, &q.Node, q.Claims)
}

func switches(names []string) (structured.Features, error) {
	var features structured.Features
	for _, name := range names {
		switch name {
		case "DRAAdminAccess":
			features.AdminAccess = true
		case "DRAConsumableCapacity":
			features.ConsumableCapacity = true
		case "DRADeviceBindingConditions+DRAResourceClaimDeviceStatus":
			features.DeviceBindingAndStatus = true
		case "DRADeviceTaints":
			features.DeviceTaints = true
		case "DRAFractionalCapacityRange":
			features.FractionalCapacityRange = true
		case "DRAPartitionableDevices":
			features.PartitionableDevices = true
		case "DRAPrioritizedList":
			features.PrioritizedList = true
		default:
			return features, fmt.Errorf("feature %q is unknown here", name)
		}
	}
	return features, nil
}

func inUse(q *question) (*structured.AllocatedState, error) {
	state := &structured.AllocatedState{
		AllocatedDevices:         sets.New[structured.DeviceID](),
		AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
	}
	for _, path := range q.AllocatedDevices {
		id, _, err := device(path)
		if err != nil {
			return nil, err
		}
		state.AllocatedDevices.Insert(id)
	}
	for _, path := range q.AllocatedShared {
		id, share, err := device(path)
		if err != nil {
			return nil, err
		}
		uid := types.UID(share)
		state.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(id, &uid))
	}
	for path, amounts := range q.AggregatedCapacity {
		id, _, err := device(path)
		if err != nil {
			return nil, err
		}
		consumed := make(map[resourceapi.QualifiedName]resource.Quantity)
		for name, text := range amounts {
			amount, err := resource.ParseQuantity(text)
			if err != nil {
				return nil, fmt.Errorf("%s of %s: %w", name, path, err)
			}
			consumed[name] = amount
		}
		state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(id, consumed))
	}
	return state, nil
}

// device splits driver/pool/device, with an optional rest.
func device(path string) (structured.DeviceID, string, error) {
	words := strings.SplitN(path, "/", 4)
	if len(words) < 3 {
		return structured.DeviceID{}, "", fmt.Errorf("device %q is not driver/pool/device", path)
	}
	return structured.MakeDeviceID(words[0], words[1], words[2]), strings.Join(words[3:], ""), nil
}

type classes []*resourceapi.DeviceClass

func (c classes) List() ([]*resourceapi.DeviceClass, error) {
	return c, nil
}

func (c classes) Get(name string) (*resourceapi.DeviceClass, error) {
	for _, class := range c {
		if class.Name == name {
			return class, nil
		}
	}
	return nil, fmt.Errorf("class %q not found", name)
}
