// Karpenter with its own provider kwok, which makes Node objects without machines, and with GPUs by this driver.
//
//	SLICES/TYPE.json, printed by vgpu slices ─┬─► templates of the instance type TYPE, by which Karpenter decides
//	                                          └─► ResourceSlices of each new node of this type: no plugin runs there
//
// Karpenter's providers know the slices of their machines; kwok's has no place to configure them. So this is kwok's own
// main function with both added to it.
package main

import (
	"log"

	"sigs.k8s.io/controller-runtime/pkg/manager"
	kwok "sigs.k8s.io/karpenter/kwok/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/cloudprovider/overlay"
	"sigs.k8s.io/karpenter/pkg/controllers"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	"sigs.k8s.io/karpenter/pkg/operator"
)

func main() {
	ctx, op := operator.NewOperator()
	types, err := kwok.ConstructInstanceTypes(ctx)
	if err != nil {
		log.Fatal(err)
	}
	gpus, err := gpusFromEnvironment()
	if err != nil {
		log.Fatal(err)
	}
	if err := gpus.describe(types); err != nil {
		log.Fatal(err)
	}
	if err := op.Add(manager.RunnableFunc(gpus.publisher(op.GetClient()))); err != nil {
		log.Fatal(err)
	}
	provider := kwok.NewCloudProvider(ctx, op.GetClient(), types)
	decorated := overlay.Decorate(provider, op.GetClient(), op.InstanceTypeStore)
	cluster := state.NewCluster(op.Clock, op.GetClient(), decorated)
	op.WithControllers(ctx, controllers.NewControllers(
		ctx, op.Manager, op.Clock, op.GetClient(), op.EventRecorder, decorated, provider, cluster, op.InstanceTypeStore,
	)...).Start(ctx)
}
