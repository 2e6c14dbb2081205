package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unique"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
)

// How often new nodes are looked for.
const period = time.Second

// gpus are the slices of the instance types that have GPUs.
type gpus struct {
	slices map[string][]resourcev1.ResourceSlice
	// The value of the taint dra.vgpu/allocator on the GPUs of new nodes; none if it is empty. The plugin sets it in
	// controller mode. Templates have no taints.
	allocator string
}

// gpusFromEnvironment reads the files in the folder SLICES, and ALLOCATOR.
func gpusFromEnvironment() (*gpus, error) {
	folder := os.Getenv("SLICES")
	files, err := filepath.Glob(filepath.Join(folder, "*.json"))
	if err != nil || len(files) == 0 {
		return nil, fmt.Errorf("SLICES=%s: no folder with a file TYPE.json for an instance type", folder)
	}
	all := &gpus{slices: map[string][]resourcev1.ResourceSlice{}, allocator: os.Getenv("ALLOCATOR")}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		var list resourcev1.ResourceSliceList
		if err := json.Unmarshal(text, &list); err != nil {
			return nil, fmt.Errorf("%s: not what vgpu slices -o json prints: %w", file, err)
		}
		if len(list.Items) == 0 {
			return nil, fmt.Errorf("%s: no ResourceSlice in it", file)
		}
		all.slices[strings.TrimSuffix(filepath.Base(file), ".json")] = list.Items
	}
	return all, nil
}

// describe tells Karpenter which slices nodes of these types will have.
func (g *gpus) describe(types []*cloudprovider.InstanceType) error {
	known := map[string]*cloudprovider.InstanceType{}
	for _, one := range types {
		known[one.Name] = one
	}
	for name, slices := range g.slices {
		one, found := known[name]
		if !found {
			return fmt.Errorf("%s.json: no instance type has this name", name)
		}
		for _, slice := range slices {
			devices := &one.DynamicResources.ResourceSliceTemplates
			*devices = append(*devices, template(&slice.Spec))
		}
	}
	return nil
}

func template(spec *resourcev1.ResourceSliceSpec) *cloudprovider.ResourceSliceTemplate {
	devices := make([]cloudprovider.Device, len(spec.Devices))
	for at, device := range spec.Devices {
		devices[at] = cloudprovider.Device{
			Name:                     unique.Make(device.Name),
			Attributes:               device.Attributes,
			Capacity:                 device.Capacity,
			AllowMultipleAllocations: device.AllowMultipleAllocations != nil && *device.AllowMultipleAllocations,
			ConsumesCounters:         device.ConsumesCounters,
		}
	}
	return &cloudprovider.ResourceSliceTemplate{
		Driver:         unique.Make(spec.Driver),
		Pool:           cloudprovider.ResourcePool{Name: unique.Make(spec.Pool.Name)},
		Devices:        devices,
		SharedCounters: spec.SharedCounters,
	}
}

// publisher returns the loop that gives new nodes of the type their slices, as the plugin would.
func (g *gpus) publisher(kube client.Client) func(context.Context) error {
	return func(ctx context.Context) error {
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(period):
			}
			if err := g.publish(ctx, kube); err != nil {
				log.FromContext(ctx).Error(err, "cannot publish slices")
			}
		}
	}
}

func (g *gpus) publish(ctx context.Context, kube client.Client) error {
	for name, slices := range g.slices {
		var nodes corev1.NodeList
		if err := kube.List(ctx, &nodes, client.MatchingLabels{corev1.LabelInstanceTypeStable: name}); err != nil {
			return err
		}
		for _, node := range nodes.Items {
			for at := range slices {
				err := kube.Create(ctx, g.sliceOf(&node, &slices[at].Spec, at))
				if err != nil && !errors.IsAlreadyExists(err) {
					return err
				}
			}
		}
	}
	return nil
}

// sliceOf returns one of a node's slices, which is deleted with the node.
func (g *gpus) sliceOf(node *corev1.Node, template *resourcev1.ResourceSliceSpec, at int) *resourcev1.ResourceSlice {
	spec := template.DeepCopy()
	_, pool, _ := strings.Cut(spec.Pool.Name, "/")
	spec.Pool.Name = node.Name + "/" + pool
	spec.NodeName = &node.Name
	if g.allocator != "" {
		for at := range spec.Devices {
			spec.Devices[at].Taints = append(spec.Devices[at].Taints, resourcev1.DeviceTaint{
				Key: "dra.vgpu/allocator", Value: g.allocator, Effect: resourcev1.DeviceTaintEffectNoSchedule,
			})
		}
	}
	owner := metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}
	return &resourcev1.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name:            fmt.Sprintf("%s-%d", node.Name, at),
			OwnerReferences: []metav1.OwnerReference{owner},
		},
		Spec: *spec,
	}
}
