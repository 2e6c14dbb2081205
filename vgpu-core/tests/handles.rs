//! Memory that is freed with its last reference (handle, mapping, binding or import), compared after each call with the
//! software GPU's own account.

mod support;

use support::caller::Caller;
use support::truth::Truth;
use support::watched::Watched;
use support::{Bench, GIB, GRANULE, MIB};

#[test]
fn sparse_arrays_hold_what_is_mapped_into_them() {
    let mut one = Watched::new("", GIB);
    one.call("cuArray3DCreate_v2 >1 [4096,4096,0,0x400000020,0x40]", 0, 0);
    one.call("cuMemCreate >2 64MiB [1,1,0,0] 0", 0, 64 * MIB);
    let part = "0,@1,0,0,0,0,0";
    one.call(&format!("cuMemMapArrayAsync [{part},1,@2,0,1,0] 1 0"), 0, 64 * MIB);
    one.call("cuMemRelease @2", 0, 64 * MIB);
    one.call(&format!("cuMemMapArrayAsync [{part},2,0,0,1,0] 1 0"), 0, 0);
    one.call("cuMemCreate >2 64MiB [1,1,0,0] 0", 0, 64 * MIB);
    one.ok(&format!("cuMemMapArrayAsync [{part},1,@2,0,1,0] 1 0"));
    one.call("cuMemRelease @2", 0, 64 * MIB);
    one.call("cuArrayDestroy @1", 0, 0);
}

#[test]
fn physical_memory_is_charged_by_its_references_and_its_device() {
    let mut one = Watched::new("", GIB);
    one.ok("cuMemAddressReserve >1 64MiB 0 0 0");
    one.call("cuMemCreate >2 32MiB [1,1,0,0] 0", 0, 32 * MIB);
    one.ok("cuMemMap @1 16MiB 0 @2 0");
    let second = one.client.get(1) + 32 * MIB;
    one.ok(&format!("set 3 {second}"));
    one.ok("cuMemMap @3 32MiB 0 @2 0");
    one.call("cuMemRelease @2", 0, 32 * MIB);
    one.call("cuMemRelease @2", 1, 32 * MIB);
    // An address in the middle of a mapping.
    one.ok(&format!("set 4 {}", second + 4 * MIB));
    one.call("cuMemRetainAllocationHandle >5 @4", 0, 32 * MIB);
    one.call("cuMemUnmap @1 8MiB", 1, 32 * MIB);
    one.call("cuMemUnmap @1 16MiB", 0, 32 * MIB);
    one.call("cuMemUnmap @3 32MiB", 0, 32 * MIB);
    one.call("cuMemRelease @5", 0, 0);
    one.call("cuMemCreate >6 2GiB [1,1,0,0] 0", 2, 0);
    // The process does not have the machine's second device.
    one.fails("cuMemCreate >6 2MiB [1,0x100000001,0,0] 0");
}

#[test]
fn multicast_objects_hold_what_is_bound_to_them() {
    let mut one = Watched::new("", GIB);
    one.call("cuMulticastCreate >1 [1,67108864,0,0]", 0, 0);
    one.call("cuMulticastAddDevice @1 0", 0, 0);
    one.call("cuMemCreate >2 32MiB [1,1,0,0] 0", 0, 32 * MIB);
    one.call("cuMulticastBindMem @1 0 @2 0 32MiB 0", 0, 32 * MIB);
    one.call("cuMemRelease @2", 0, 32 * MIB);
    one.ok("cuMemAddressReserve >3 64MiB 0 0 0");
    one.call("cuMemMap @3 64MiB 0 @1 0", 0, 32 * MIB);
    one.call("cuMulticastUnbind @1 0 0 16MiB", 0, 32 * MIB);
    one.call("cuMulticastUnbind @1 0 0 32MiB", 0, 0);
    // Bound memory is released with the object's last handle and mapping.
    one.call("cuMemCreate >2 16MiB [1,1,0,0] 0", 0, 16 * MIB);
    one.ok("cuMemAddressReserve >4 16MiB 0 0 0");
    one.ok("cuMemMap @4 16MiB 0 @2 0");
    one.call("cuMulticastBindAddr @1 0 @4 16MiB 0", 0, 16 * MIB);
    one.call("cuMemUnmap @4 16MiB", 0, 16 * MIB);
    one.call("cuMemRelease @2", 0, 16 * MIB);
    one.call("cuMemRelease @1", 0, 16 * MIB);
    one.call("cuMemUnmap @3 64MiB", 0, 0);
}

/// Another thread may bind while the driver unbinds, so the entry is removed before the call, and added again if the
/// driver refuses.
#[test]
fn what_the_driver_does_not_bind_or_unbind_changes_nothing() {
    let faults = "fail.cuMulticastUnbind = 1 after 0 every 2\nfail.cuMulticastBindMem = 1 after 0 every 2\n";
    let mut one = Watched::new(faults, GIB);
    one.call("cuMulticastCreate >1 [1,67108864,0,0]", 0, 0);
    one.call("cuMemCreate >2 32MiB [1,1,0,0] 0", 0, 32 * MIB);
    one.call("cuMulticastBindMem @1 0 @2 0 32MiB 0", 0, 32 * MIB);
    one.call("cuMemCreate >3 16MiB [1,1,0,0] 0", 0, 48 * MIB);
    one.call("cuMulticastBindMem @1 32MiB @3 0 16MiB 0", 1, 48 * MIB);
    one.call("cuMemRelease @3", 0, 32 * MIB);
    one.call("cuMemRelease @2", 0, 32 * MIB);
    one.call("cuMulticastUnbind @1 0 48MiB 16MiB", 0, 32 * MIB);
    one.call("cuMulticastUnbind @1 0 0 64MiB", 1, 32 * MIB);
    one.call("cuMulticastUnbind @1 7 0 64MiB", 101, 32 * MIB);
    one.call("cuMulticastUnbind @1 0 0 32MiB", 0, 0);
}

#[test]
fn a_binding_for_a_device_goes_with_that_device() {
    let mut one = Watched::new("", GIB);
    one.call("cuMulticastCreate >1 [1,67108864,0,0]", 0, 0);
    one.call("cuMemCreate >2 32MiB [1,1,0,0] 0", 0, 32 * MIB);
    one.call("cuMulticastBindMem_v2 @1 1 0 @2 0 32MiB 0", 101, 32 * MIB);
    one.call("cuMulticastBindMem_v2 @1 0 0 @2 0 32MiB 0", 0, 32 * MIB);
    one.ok("cuMemAddressReserve >3 32MiB 0 0 0");
    one.ok("cuMemMap @3 32MiB 0 @2 0");
    one.call("cuMulticastBindAddr_v2 @1 0 32MiB @3 32MiB 0", 0, 32 * MIB);
    one.call("cuMemUnmap @3 32MiB", 0, 32 * MIB);
    one.call("cuMemRelease @2", 0, 32 * MIB);
    one.call("cuMulticastUnbind @1 0 0 32MiB", 0, 32 * MIB);
    one.call("cuMulticastUnbind @1 0 32MiB 32MiB", 0, 0);
}

/// A handle from another process whose properties the driver does not report: a multicast object.
#[test]
fn imported_multicast_objects_hold_what_is_bound_to_them() {
    let fault = "fail.cuMemGetAllocationPropertiesFromHandle = 1 after 0 every 1\n";
    let mut one = Watched::new(fault, GIB);
    one.call("cuMulticastCreate >1 [1,67108864,1,0]", 0, 0);
    one.ok("cuMemExportToShareableHandle >2 @1 1 0");
    one.call("cuMemImportFromShareableHandle >3 @2 1", 0, 0);
    one.call("cuMemCreate >4 32MiB [1,1,0,0] 0", 0, 32 * MIB);
    one.call("cuMulticastBindMem @3 0 @4 0 32MiB 0", 0, 32 * MIB);
    one.call("cuMemRelease @4", 0, 32 * MIB);
    one.ok("cuMemAddressReserve >5 64MiB 0 0 0");
    one.call("cuMemMap @5 64MiB 0 @3 0", 0, 32 * MIB);
    one.call("cuMemRelease @3", 0, 32 * MIB);
    one.call("cuMemUnmap @5 64MiB", 0, 0);
}

/// Memory that is charged twice must not hide the memory of a module, because it may be released while the module
/// stays.
#[test]
fn modules_are_charged_beside_memory_that_is_charged_twice() {
    let mut one = Watched::new(
        "context_cost = 10MiB\nmodule_cost = 6MiB\nnvml_pids = host\n",
        256 * MIB,
    );
    one.call("cuMemCreate >1 64MiB [0x100000001,1,0,0] 0", 0, 74 * MIB);
    one.ok("cuMemExportToShareableHandle >9 @1 1 0");
    // Under a second name, so that it is not recognised.
    one.ok("cuMemExportToShareableHandle >2 @1 1 0");
    one.ok("cuMemImportFromShareableHandle >3 @2 1");
    one.ok("cuMemAddressReserve >4 32MiB 0 0 0");
    one.ok("cuMemMap @4 32MiB 0 @3 0");
    assert_eq!(one.charged(), 106 * MIB, "half of it twice");
    let text = "\".version\\s8.0\\n.target\\ssm_90\\n\"";
    one.ok(&format!("cuModuleLoadData >5 {text}"));
    assert_eq!(one.charged(), 112 * MIB);
    one.ok(&format!("cuModuleLoadData >6 {text}"));
    one.ok("cuModuleUnload @5");
    assert_eq!(one.charged(), 112 * MIB);
    one.ok("cuMemUnmap @4 32MiB");
    one.ok("cuMemRelease @3");
    assert_eq!(one.same(), 80 * MIB);
    one.call("cuModuleUnload @6", 0, 74 * MIB);
}

#[test]
fn imported_memory_that_is_bound_is_charged_here_too() {
    let mut one = Watched::new("", 256 * MIB);
    one.call("cuMemCreate >1 64MiB [0x100000001,1,0,0] 0", 0, 64 * MIB);
    one.call("cuMemExportToShareableHandle >9 @1 1 0", 0, 64 * MIB);
    // Under a second name, so that it is not recognised.
    one.call("cuMemExportToShareableHandle >2 @1 1 0", 0, 64 * MIB);
    one.ok("cuMemImportFromShareableHandle >3 @2 1");
    one.ok("cuMulticastCreate >4 [1,67108864,1,0]");
    one.ok("cuMulticastBindMem @4 0 @3 0 32MiB 0");
    assert_eq!(one.charged(), 96 * MIB, "its maker may die first");
    one.ok("cuMemRelease @3");
    assert_eq!(one.charged(), 96 * MIB);
    one.ok("cuMulticastUnbind @4 0 0 32MiB");
    assert_eq!(one.charged(), 64 * MIB);
}

#[test]
fn what_threads_count_at_once_is_gone_with_the_last() {
    let bench = Bench::of_share("context_cost = 100MiB\nnvml_pids = host\n", GIB);
    let mut truth = Truth::new(&bench);
    let mut client = bench.serving(&["init"]);
    assert_eq!(client.ask("counted:5000"), "0");
    assert_eq!([bench.usage("share").charged, truth.used()], [0; 2]);
}

/// Another process, of that bench, with the IPC handle of the first one's pointer 1 in slot 2.
fn importer_of(bench: &Bench, one: &mut Watched) -> Caller {
    one.ok("cuIpcGetMemHandle >2 @1");
    let words = one.client.say("raw 2");
    let mut other = bench.caller(true);
    other.init();
    other.say(&format!("put 2 {words}"));
    other
}

#[test]
fn imports_of_another_share_are_charged_to_who_maps_them() {
    let mut one = Watched::new("", 256 * MIB);
    one.call("cuMemAlloc_v2 >1 64MiB", 0, 64 * MIB);
    let theirs = Bench::on_gpu_of(&one.bench, 256 * MIB);
    let mut other = importer_of(&theirs, &mut one);
    other.ok("cuIpcOpenMemHandle_v2 >3 >2");
    assert_eq!([one.charged(), theirs.usage("share").charged], [64 * MIB; 2]);
    assert_eq!(
        other.call("cuIpcOpenMemHandle_v2 >4 >2"),
        0,
        "once more: counted, not charged"
    );
    assert_eq!((theirs.usage("share").charged, other.get(4)), (64 * MIB, other.get(3)));
    other.ok("cuIpcCloseMemHandle @3");
    assert_eq!(theirs.usage("share").charged, 64 * MIB);
    // The exporter dies. The memory that is mapped here stays charged.
    assert_eq!(one.kill().free(), 256 * MIB);
    assert_eq!(theirs.free(), 192 * MIB);
    other.ok("cuIpcCloseMemHandle @3");
    assert_eq!(theirs.free(), 256 * MIB);
}

#[test]
fn imports_that_do_not_fit_are_closed_again() {
    let mut one = Watched::new("", 96 * MIB);
    one.call("cuMemAlloc_v2 >1 64MiB", 0, 64 * MIB);
    let theirs = Bench::on_gpu_of(&one.bench, 32 * MIB);
    let mut other = importer_of(&theirs, &mut one);
    other.gives("cuIpcOpenMemHandle_v2 >3 >2", 2);
    assert_eq!(other.call("cuIpcCloseMemHandle @3"), 1, "it is not open");
    assert_eq!(theirs.usage("share").charged, 0);
    one.same();
}

/// Such an importer is in another share, or got the descriptor in a way that cannot be matched.
#[test]
fn imported_physical_memory_of_another_name_is_charged_by_what_is_mapped() {
    let mut one = Watched::new("", 256 * MIB);
    one.call("cuMemCreate >1 64MiB [0x100000001,1,0,0] 0", 0, 64 * MIB);
    one.call("cuMemExportToShareableHandle >9 @1 1 0", 0, 64 * MIB);
    // A second export of the same memory cannot be matched.
    one.call("cuMemExportToShareableHandle >2 @1 1 0", 0, 64 * MIB);
    one.ok("cuMemImportFromShareableHandle >3 @2 1");
    assert_eq!(one.charged(), 64 * MIB);
    one.ok("cuMemAddressReserve >4 64MiB 0 0 0");
    one.ok("cuMemMap @4 32MiB 0 @3 0");
    assert_eq!(one.charged(), 96 * MIB);
    one.ok("cuMemRelease @3");
    assert_eq!(one.charged(), 96 * MIB);
    one.ok("cuMemUnmap @4 32MiB");
    // The descriptor keeps the memory.
    one.call("cuMemRelease @1", 0, 64 * MIB);
}

/// Makes handle 3, an import of 64 MiB, and array 4, a sparse one with tiles of 64 x 64 elements.
fn imported_for_an_array(one: &mut Watched) {
    one.call("cuMemCreate >1 64MiB [0x100000001,1,0,0] 0", 0, 64 * MIB);
    one.call("cuMemExportToShareableHandle >9 @1 1 0", 0, 64 * MIB);
    // Under a second name, so that it is not recognised.
    one.call("cuMemExportToShareableHandle >2 @1 1 0", 0, 64 * MIB);
    one.ok("cuMemImportFromShareableHandle >3 @2 1");
    one.ok("cuArray3DCreate_v2 >4 [4096,4096,0,0x400000020,0x40]");
    assert_eq!(one.charged(), 64 * MIB);
}

#[test]
fn imported_memory_in_a_sparse_array_is_charged_by_what_is_mapped() {
    let mut one = Watched::new("", 256 * MIB);
    imported_for_an_array(&mut one);
    // Maps 4096 x 128 elements: 64 x 2 tiles of 64 KiB, which is 8 MiB, starting at 16 MiB of the memory.
    let part = "0,@4,0,0,0,0x100000000000,0x100000080";
    one.ok(&format!("cuMemMapArrayAsync [{part},1,@3,0x1000000,1,0] 1 0"));
    assert_eq!(one.charged(), (64 + 24) * MIB, "its maker may die first");
    // One more element takes one more row of tiles. Without a given depth, a level has depth 1.
    let other = "0,@4,0,0,0x8000000000,0x100000000000,0x81";
    one.ok(&format!("cuMemMapArrayAsync [{other},1,@3,0x1000000,1,0] 1 0"));
    assert_eq!(one.charged(), (64 + 28) * MIB);
    one.ok("cuMemRelease @3");
    assert_eq!(one.charged(), (64 + 28) * MIB, "the array holds it");
    one.ok(&format!("cuMemMapArrayAsync [{part},2,0,0,1,0] 1 0"));
    assert_eq!(one.charged(), (64 + 28) * MIB, "the other tiles do");
    one.ok("cuArrayDestroy @4");
    assert_eq!(one.same(), 64 * MIB);
}

#[test]
fn imported_memory_that_does_not_fit_is_not_mapped_into_an_array() {
    let mut one = Watched::new("", 80 * MIB);
    imported_for_an_array(&mut one);
    let tail = |bytes: u64| format!("cuMemMapArrayAsync [0,@4,1,0,0,{bytes},0,1,@3,0,1,0] 1 0");
    one.call(&tail(20 << 20), 2, 64 * MIB);
    one.ok(&tail(16 << 20));
    assert_eq!(one.charged(), 80 * MIB);
    one.ok("cuArrayDestroy @4");
    one.ok("cuMemRelease @3");
    one.same();
}

/// If the driver does not report the size of tiles, at least one tile is charged.
#[test]
fn imported_memory_in_an_array_of_unknown_tiles_is_charged_all_the_same() {
    let mut one = Watched::new("fail.cuArrayGetSparseProperties = 801 after 0 every 1\n", 256 * MIB);
    imported_for_an_array(&mut one);
    one.ok("cuMemMapArrayAsync [0,@4,0,0,0,0x100000000000,0x100000080,1,@3,0x1000000,1,0] 1 0");
    assert_eq!(one.charged(), (64 + 18) * MIB);
}

#[test]
fn pointers_of_imported_pools_are_charged_until_they_are_freed() {
    let mut one = Watched::new("", 256 * MIB);
    one.ok("cuMemPoolCreate >1 [0x100000001,1,0,0,0,0,0,0,0,0,0]");
    one.call("cuMemAllocFromPoolAsync >2 64MiB @1 0", 0, 64 * MIB);
    one.ok("cuMemPoolExportToShareableHandle >3 @1 1 0");
    one.ok("cuMemPoolImportFromShareableHandle >4 @3 1 0");
    one.ok("cuMemPoolExportPointer >5 @2");
    one.ok("cuMemPoolImportPointer >6 @4 >5");
    assert_eq!(one.charged(), 128 * MIB);
    one.call("cuMemFreeAsync @6 0", 0, 64 * MIB);
}

#[test]
fn external_memory_is_charged_until_nothing_refers_to_it() {
    let mut one = Watched::new("", 256 * MIB);
    one.call("cuImportExternalMemory >1 [1,7,0,67108864,0]", 0, 64 * MIB);
    one.call("cuExternalMemoryGetMappedBuffer >2 @1 [0,33554432]", 0, 64 * MIB);
    one.call(
        "cuExternalMemoryGetMappedMipmappedArray >3 @1 [0,64,64,0,0x400000020,0,1]",
        0,
        64 * MIB,
    );
    one.call("cuDestroyExternalMemory @1", 0, 64 * MIB);
    one.call("cuMemFree_v2 @2", 0, 64 * MIB);
    one.call("cuMipmappedArrayDestroy @3", 0, 0);
    one.call("cuImportExternalMemory >1 [1,7,0,536870912,0]", 2, 0);
}

/// The memory belongs to another share. It is charged once in this share, from the first open to the last close.
#[test]
fn two_threads_that_open_one_handle_at_once_are_charged_once() {
    let ours = Bench::with_share(GIB);
    let theirs = Bench::on_gpu_of(&ours, GIB);
    let mut maker = ours.serving(&["init", "alloc:64MiB", "export:0"]);
    let mut client = theirs.serving(&["init"]);
    assert_eq!(client.ask(&format!("named:{}", maker.ask("name"))), "0");
    assert_eq!(client.ask("together:2000"), "0", "rounds that were charged wrongly");
    assert_eq!(theirs.usage("share").charged, 0);
}

/// A call that cannot succeed fails under a share with the driver's own error: for sizes around and above those of the
/// share and the GPU, for wrong arguments, and for both at once.
#[test]
fn a_create_that_cannot_succeed_answers_as_the_driver() {
    const GPU: u64 = 1 << 30;
    for share in [64 * MIB, GPU] {
        let bench = Bench::of_share("memory = 1GiB\n", share);
        let (mut client, mut bare) = (bench.caller(true), bench.caller(false));
        client.init();
        bare.init();
        let mut different = Vec::new();
        let sizes = [
            0,
            1,
            share + GRANULE,
            GPU + GRANULE,
            64 * GPU,
            u64::MAX,
            u64::MAX - GRANULE + 1,
        ];
        let unaligned = sizes.map(|size| size.wrapping_add(4096));
        for size in sizes.into_iter().chain(unaligned) {
            for properties in ["[1,1,0,0]", "[0,1,0,0]", "[0x800000001,1,0,0]", "[1,9,0,0]"] {
                for flags in [0, 1] {
                    let line = format!("cuMemCreate >1 {size} {properties} {flags}");
                    let (own, real) = (client.call(&line), bare.call(&line));
                    if real == 0 {
                        // It fits on the GPU, but not in the share.
                        bare.ok("cuMemRelease @1");
                    }
                    let wanted = if real == 0 { 2 } else { real };
                    if own != wanted {
                        different.push(format!("{line}: {own}, the driver {real}"));
                    }
                }
            }
        }
        assert!(different.is_empty(), "a share of {share}:\n{}", different.join("\n"));
        assert_eq!(bench.usage("share").charged, 0);
    }
}
