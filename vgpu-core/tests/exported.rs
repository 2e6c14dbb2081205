//! Memory that stays allocated after it was freed, because of exported descriptors or logical endpoints. Also contexts
//! that are created and destroyed by functions other than cuCtxCreate and cuCtxDestroy.

mod support;

use support::watched::Watched;
use support::{GIB, GRANULE, MIB};

/// The size of a context in these tests.
const COSTS: &str = "context_cost = 10MiB\nnvml_pids = host\n";

#[test]
fn memory_with_a_descriptor_stays_charged_after_its_release() {
    let mut one = Watched::new("", 256 * MIB);
    for round in 1..=4 {
        one.call("cuMemCreate >1 64MiB [0x100000001,1,0,0] 0", 0, round * 64 * MIB);
        one.call("cuMemExportToShareableHandle >2 @1 1 0", 0, round * 64 * MIB);
        one.call("cuMemExportToShareableHandle >3 @1 1 0", 0, round * 64 * MIB);
        one.call("cuMemRelease @1", 0, round * 64 * MIB);
    }
    one.call("cuMemCreate >1 64MiB [0x100000001,1,0,0] 0", 2, 256 * MIB);
    // The charges end with the process, and on the software GPU its memory too.
    assert_eq!(one.kill().free(), 256 * MIB);
}

/// According to NVIDIA's documentation of cuMemRelease, such memory is freed when its mappings, its handles and their
/// shareable counterparts are gone.
#[test]
fn memory_is_free_when_its_last_descriptor_is_closed() {
    let mut one = Watched::new("", 256 * MIB);
    for round in 0..20 {
        one.call("cuMemCreate >1 64MiB [0x100000001,1,0,0] 0", 0, 64 * MIB);
        one.call("cuMemExportToShareableHandle >2 @1 1 0", 0, 64 * MIB);
        one.call("cuMemExportToShareableHandle >3 @1 1 0", 0, 64 * MIB);
        one.ok("dup >4 @2");
        one.ok("close @2");
        one.call("cuMemRelease @1", 0, 64 * MIB);
        one.ok("close @4");
        // The other export still has an open descriptor.
        one.call("cuMemGetInfo_v2 >8 >9", 0, 64 * MIB);
        assert_eq!(one.client.get(8), 192 * MIB, "round {round}");
        one.ok("close @3");
        one.call("cuMemGetInfo_v2 >8 >9", 0, 0);
        assert_eq!(one.client.get(8), 256 * MIB, "round {round}");
    }
    // The descriptors first, then the mapping and the handle.
    one.ok("cuMemCreate >1 64MiB [0x100000001,1,0,0] 0");
    one.ok("cuMemAddressReserve >5 64MiB 0 0 0");
    one.ok("cuMemMap @5 64MiB 0 @1 0");
    one.ok("cuMemExportToShareableHandle >2 @1 1 0");
    one.ok("close @2");
    one.call("cuMemRelease @1", 0, 64 * MIB);
    one.call("cuMemUnmap @5 64MiB", 0, 0);
}

/// Memory of exports that are closed and released in a loop always fits. A call that does not fit checks for closed
/// exports, too.
#[test]
fn closed_exports_give_way() {
    let mut one = Watched::new("", 96 * MIB);
    for _ in 0..20 {
        one.ok("cuMemCreate >1 64MiB [0x100000001,1,0,0] 0");
        one.ok("cuMemExportToShareableHandle >2 @1 1 0");
        one.ok("cuMemRelease @1");
        one.ok("close @2");
    }
    assert_eq!(one.charged(), 64 * MIB, "nothing was asked for since");
    one.call("cuMemAlloc_v2 >3 96MiB", 0, 96 * MIB);
}

/// An import with this descriptor keeps the memory and its charge.
#[test]
fn an_import_keeps_what_its_closed_descriptor_had() {
    let mut one = Watched::new("", 256 * MIB);
    one.call("cuMemCreate >1 64MiB [0x100000001,1,0,0] 0", 0, 64 * MIB);
    one.call("cuMemExportToShareableHandle >2 @1 1 0", 0, 64 * MIB);
    one.call("cuMemImportFromShareableHandle >3 @2 1", 0, 64 * MIB);
    one.ok("close @2");
    one.call("cuMemRelease @1", 0, 64 * MIB);
    one.call("cuMemGetInfo_v2 >8 >9", 0, 64 * MIB);
    one.ok("cuMemRelease @3");
    one.call("cuMemGetInfo_v2 >8 >9", 0, 0);
}

#[test]
fn an_export_that_fails_keeps_nothing() {
    let mut one = Watched::new("", 256 * MIB);
    one.call("cuMemCreate >1 64MiB [0x100000001,1,0,0] 0", 0, 64 * MIB);
    one.call("cuMemExportToShareableHandle >2 @1 2 0", 1, 64 * MIB);
    one.call("cuMemRelease @1", 0, 0);
    one.call("cuMemExportToShareableHandle >2 @1 1 0", 1, 0);
    one.call("cuMemAlloc_v2 >1 8MiB", 0, 8 * MIB);
    one.call("cuMemAlloc_v2 >2 4096", 0, 8 * MIB + GRANULE);
    one.call("cuMemAlloc_v2 >3 4096", 0, 8 * MIB + GRANULE);
    one.call("cuMemGetHandleForAddressRange >9 @1 8MiB 2 0", 1, 8 * MIB + GRANULE);
    one.call("cuMemGetHandleForAddressRange >9 @2 4096 2 0", 1, 8 * MIB + GRANULE);
    one.call("cuMemGetHandleForAddressRange >9 @3 1 1 0", 1, 8 * MIB + GRANULE);
    one.call("cuMemFree_v2 @1", 0, GRANULE);
    one.call("cuMemFree_v2 @2", 0, GRANULE);
    one.call("cuMemGetHandleForAddressRange >9 @3 4096 2 0", 1, GRANULE);
    one.call("cuMemFree_v2 @3", 0, 0);
}

#[test]
fn memory_with_a_dma_buf_stays_charged_after_its_free() {
    let mut one = Watched::new("", 256 * MIB);
    one.call("cuMemAlloc_v2 >1 32MiB", 0, 32 * MIB);
    one.call("cuMemGetHandleForAddressRange >2 @1 4096 1 0", 0, 32 * MIB);
    one.call("cuMemGetHandleForAddressRange >2 @1 32MiB 1 0", 0, 32 * MIB);
    one.call("cuMemFree_v2 @1", 0, 32 * MIB);
    one.call("cuMemFree_v2 @1", 1, 32 * MIB);
    // A handle for an address range keeps each physical allocation that is mapped there.
    one.call("cuMemCreate >3 16MiB [1,1,0,0] 0", 0, 48 * MIB);
    one.ok("cuMemAddressReserve >4 16MiB 0 0 0");
    one.ok("cuMemMap @4 16MiB 0 @3 0");
    one.call("cuMemGetHandleForAddressRange >5 @4 16MiB 1 0", 0, 48 * MIB);
    one.call("cuMemUnmap @4 16MiB", 0, 48 * MIB);
    one.call("cuMemRelease @3", 0, 48 * MIB);
    // Host memory is not charged.
    one.ok("cuMemHostAlloc >6 4096 0");
    one.fails("cuMemGetHandleForAddressRange >7 @6 4096 1 0");
}

#[test]
fn a_granule_with_a_dma_buf_is_charged_at_least_once() {
    let mut one = Watched::new("", 256 * MIB);
    one.call("cuMemAlloc_v2 >1 4096", 0, GRANULE);
    one.call("cuMemAlloc_v2 >2 4096", 0, GRANULE);
    one.call("cuMemGetHandleForAddressRange >9 @1 4096 1 0", 0, GRANULE);
    one.call("cuMemFree_v2 @1", 0, GRANULE);
    one.call("cuMemFree_v2 @2", 0, GRANULE);
    // The library cannot know that the driver reuses the granule that was kept, and charges it again.
    one.ok("cuMemAlloc_v2 >3 4096");
    assert_eq!(one.charged(), 2 * GRANULE);
    one.call("cuMemFree_v2 @3", 0, GRANULE);
}

/// A pool's descriptor keeps no memory. The pool itself exists, and is charged, until it is empty.
#[test]
fn a_pool_with_a_descriptor_is_charged_until_it_is_empty() {
    let mut one = Watched::new("", 256 * MIB);
    one.ok("cuMemPoolCreate >1 [0x100000001,1,0,0,0,0,0,0,0,0,0]");
    one.call("cuMemAllocFromPoolAsync >2 64MiB @1 0", 0, 64 * MIB);
    one.call("cuMemPoolExportToShareableHandle >3 @1 1 0", 0, 64 * MIB);
    one.call("cuMemPoolDestroy @1", 0, 64 * MIB);
    one.call("cuMemFreeAsync @2 0", 0, 0);
}

#[test]
fn endpoints_hold_what_is_bound_to_them() {
    let mut one = Watched::new("", GIB);
    one.ok("cuLogicalEndpointIdReserve >1 2");
    assert_eq!(one.client.get(1), 0, "a number that is 0");
    one.ok("cuLogicalEndpointGetLimits >2 >3 [1,67108864,0]");
    one.call("cuLogicalEndpointCreate @1 [1,67108864,0]", 0, 0);
    one.ok("cuLogicalEndpointQuery @1 1 >2");
    one.call("cuMemCreate >4 32MiB [1,1,0,0] 0", 0, 32 * MIB);
    one.call("cuLogicalEndpointBindMem @1 0 48MiB @4 0 32MiB 0", 1, 32 * MIB);
    one.call("cuLogicalEndpointBindMem @1 0 0 @4 0 32MiB 0", 0, 32 * MIB);
    one.call("cuMemRelease @4", 0, 32 * MIB);
    one.ok("cuMemCreate >4 16MiB [1,1,0,0] 0");
    one.ok("cuMemAddressReserve >5 16MiB 0 0 0");
    one.ok("cuMemMap @5 16MiB 0 @4 0");
    one.call("cuLogicalEndpointBindAddr @1 0 32MiB @5 16MiB 0", 0, 48 * MIB);
    one.call("cuMemRelease @4", 0, 48 * MIB);
    one.call("cuMemUnmap @5 16MiB", 0, 48 * MIB);
    one.call("cuLogicalEndpointUnbind @1 0 0 16MiB", 0, 48 * MIB);
    one.call("cuLogicalEndpointUnbind 1 0 0 64MiB", 1, 48 * MIB);
    one.call("cuLogicalEndpointUnbind @1 0 0 32MiB", 0, 16 * MIB);
    one.call("cuLogicalEndpointDestroy 1", 1, 16 * MIB);
    one.call("cuLogicalEndpointDestroy @1", 0, 0);
    one.ok("cuLogicalEndpointIdRelease @1 2");
}

#[test]
fn what_the_driver_does_not_unbind_or_destroy_changes_nothing() {
    let faults =
        "fail.cuLogicalEndpointUnbind = 1 after 0 every 2\nfail.cuLogicalEndpointDestroy = 1 after 0 every 1\n";
    let mut one = Watched::new(faults, GIB);
    one.ok("cuLogicalEndpointIdReserve >1 1");
    one.ok("cuLogicalEndpointCreate @1 [1,67108864,0]");
    one.call("cuMemCreate >2 32MiB [1,1,0,0] 0", 0, 32 * MIB);
    one.call("cuLogicalEndpointBindMem @1 0 0 @2 0 32MiB 0", 0, 32 * MIB);
    one.call("cuMemRelease @2", 0, 32 * MIB);
    one.call("cuLogicalEndpointDestroy @1", 1, 32 * MIB);
    one.call("cuLogicalEndpointUnbind @1 0 32MiB 32MiB", 0, 32 * MIB);
    one.call("cuLogicalEndpointUnbind @1 0 0 64MiB", 1, 32 * MIB);
    one.call("cuLogicalEndpointUnbind @1 0 0 64MiB", 0, 0);
}

/// A binding of a pool's memory would be charged beside the pool. The software GPU refuses such bindings.
#[test]
fn a_binding_that_fails_is_not_charged() {
    let mut one = Watched::new("", 96 * MIB);
    one.ok("cuLogicalEndpointIdReserve >1 1");
    one.ok("cuLogicalEndpointCreate @1 [1,67108864,0]");
    one.call("cuMemAllocAsync >2 64MiB 0", 0, 64 * MIB);
    one.call("cuLogicalEndpointBindAddr @1 0 0 @2 2MiB 0", 1, 64 * MIB);
    one.call("cuLogicalEndpointBindAddr @1 0 0 @2 64MiB 0", 2, 64 * MIB);
    one.ok("cuMemHostAlloc >3 4096 0");
    one.call("cuLogicalEndpointBindAddr @1 0 0 @3 4096 0", 1, 64 * MIB);
}

#[test]
fn contexts_for_graphics_are_charged_like_others() {
    let mut one = Watched::new(COSTS, 64 * MIB);
    for create in [
        "cuGLCtxCreate_v2 >1 0 0",
        "cuGLCtxCreate >1 0 0",
        "cuVDPAUCtxCreate_v2 >1 0 0 0 0",
        "cuVDPAUCtxCreate >1 0 0 0 0",
    ] {
        one.call(create, 0, 20 * MIB);
        one.call("cuMemAlloc_v2 >2 8MiB", 0, 28 * MIB);
        one.call("cuCtxDestroy_v2 @1", 0, 10 * MIB);
    }
    one.ok("cuCtxSetCurrent @9001");
    one.call("cuMemAlloc_v2 >2 48MiB", 0, 58 * MIB);
    one.call("cuGLCtxCreate_v2 >1 0 0", 2, 58 * MIB);
}

#[test]
fn a_context_goes_with_its_last_user() {
    let mut one = Watched::new(COSTS, 64 * MIB);
    one.call("cuCtxCreate_v2 >1 0 0", 0, 20 * MIB);
    one.call("cuMemAlloc_v2 >2 8MiB", 0, 28 * MIB);
    one.call("cuCtxAttach >3 0", 0, 28 * MIB);
    assert_eq!(one.client.get(3), one.client.get(1));
    one.call("cuCtxDetach @1", 0, 28 * MIB);
    one.call("cuCtxDetach @1", 0, 10 * MIB);
    one.fails("cuCtxDetach @1");
    // cuCtxDestroy does not wait for other users.
    one.call("cuCtxCreate_v2 >1 0 0", 0, 20 * MIB);
    one.call("cuCtxAttach >3 0", 0, 20 * MIB);
    one.call("cuCtxDestroy_v2 @1", 0, 10 * MIB);
}
