//! Hooks for graphs. The memory that a graph needs is counted when it is instantiated and charged when it is launched
//! (`graphs`). Nodes that allocate contain device numbers, which are translated.
#![allow(clippy::too_many_arguments)] // They are NVIDIA's.

use crate::codes::{INVALID_DEVICE, SUCCESS};
use crate::hooks::contexts::measure::{at_slow_moment, expect_growth};
use crate::hooks::devices::locations::{Access, with_real};
use crate::hooks::graphs::launch::{enter, leave, mapped, settle_all};
use crate::hooks::{compute, memory};
use crate::process::Ready;
use crate::real::real;
use core::ffi::{c_char, c_int, c_ulonglong, c_void};
use vgpu_core::memory::captures;
use vgpu_core::memory::granule::granules;
use vgpu_core::memory::graphs::{Needs, used};

const CHILD_GRAPH: c_int = 4;
const MEM_ALLOC: c_int = 10;
/// CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD.
const UPLOAD: u64 = 2;
/// How deep graphs lie in graphs, at most.
const DEPTH: u32 = 16;

/// CUDA_MEM_ALLOC_NODE_PARAMS.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct AllocNode {
    pool: memory::pools::Properties,
    access: *const Access,
    access_count: usize,
    bytes: usize,
    pointer: u64,
}

/// CUgraphNodeParams, one of whose forms is an [`AllocNode`].
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct NodeParams {
    kind: c_int,
    reserved: [c_int; 3],
    alloc: AllocNode,
    rest: [u64; 15],
}

/// The beginning of CUDA_GRAPH_INSTANTIATE_PARAMS.
#[repr(C)]
pub(crate) struct InstantiateParams {
    flags: u64,
    stream: usize,
}
const _: () = assert!(size_of::<AllocNode>() == 120 && size_of::<NodeParams>() == 256);
const _: () = assert!(core::mem::offset_of!(NodeParams, alloc) == 16);

// === What a graph needs ===

fn needs_of(ready: &Ready, graph: usize) -> Needs {
    let mut needs = Needs::new();
    collect(ready, graph, DEPTH, &mut needs);
    needs
}

fn collect(ready: &Ready, graph: usize, depth: u32, needs: &mut Needs) {
    let get = real!(cuGraphGetNodes(usize, *mut usize, *mut usize));
    let mut count = 0;
    // SAFETY: only the count is to be written.
    if depth == 0 || unsafe { get(graph, core::ptr::null_mut(), &mut count) } != SUCCESS {
        return;
    }
    let mut nodes = vec![0_usize; count];
    // SAFETY: room for as many as the driver has just counted.
    if count == 0 || unsafe { get(graph, nodes.as_mut_ptr(), &mut count) } != SUCCESS {
        return;
    }
    for node in nodes.into_iter().take(count) {
        let mut kind = -1;
        // SAFETY: to be written.
        unsafe { real!(cuGraphNodeGetType(usize, *mut c_int))(node, &mut kind) };
        match kind {
            MEM_ALLOC => {
                if let Some((gpu, bytes)) = allocation(ready, node) {
                    match needs.iter_mut().find(|(known, _)| *known == gpu) {
                        Some((_, sum)) => *sum = sum.saturating_add(bytes),
                        None => needs.push((gpu, bytes)),
                    }
                }
            }
            CHILD_GRAPH => {
                let mut child = 0;
                // SAFETY: to be written.
                if unsafe { real!(cuGraphChildGraphNodeGetGraph(usize, *mut usize))(node, &mut child) } == SUCCESS {
                    collect(ready, child, depth - 1, needs);
                }
            }
            _ => {}
        }
    }
    needs.sort_unstable();
}

fn allocation(ready: &Ready, node: usize) -> Option<(usize, u64)> {
    let mut params = core::mem::MaybeUninit::<AllocNode>::zeroed();
    // SAFETY: to be written.
    let result = unsafe { real!(cuGraphMemAllocNodeGetParams(usize, *mut AllocNode))(node, params.as_mut_ptr()) };
    (result == SUCCESS).then_some(())?;
    // SAFETY: the driver has written it; all-zero would be valid too.
    let params = unsafe { params.assume_init() };
    let gpu = params.pool.location.real_gpu(ready.devices()?)?;
    Some((gpu, granules(params.bytes as u64)?))
}

// === Hooks ===

/// Instantiates `graph` by `call`, which writes `exec`.
///
/// # Safety
/// `exec` is null or written when `call` succeeds.
unsafe fn instantiated(
    ready: &'static Ready,
    exec: *mut usize,
    graph: usize,
    upload: Option<usize>,
    call: impl FnOnce() -> c_int,
) -> c_int {
    expect_growth(ready);
    let needs = needs_of(ready, graph);
    if needs.is_empty() || exec.is_null() {
        return call();
    }
    enter(ready, &needs);
    let result = match upload {
        Some(stream) => mapped(ready, &needs, stream, call),
        None => call(),
    };
    if result == SUCCESS {
        // SAFETY: as promised.
        let stale = ready.tables.graphs.insert(unsafe { *exec } as u64, needs);
        // The driver returns a known handle only if the old one was destroyed: with a context, unseen here.
        stale.iter().for_each(|needs| leave(ready, needs));
    } else {
        leave(ready, &needs);
    }
    result
}

pub(crate) unsafe fn instantiate(
    ready: &'static Ready,
    real: unsafe extern "C" fn(*mut usize, usize, *mut usize, *mut c_char, usize) -> c_int,
    exec: *mut usize,
    graph: usize,
    bad: *mut usize,
    log: *mut c_char,
    room: usize,
) -> c_int {
    // SAFETY: passed on.
    unsafe { instantiated(ready, exec, graph, None, || real(exec, graph, bad, log, room)) }
}

pub(crate) unsafe fn instantiate_with_flags(
    ready: &'static Ready,
    real: unsafe extern "C" fn(*mut usize, usize, c_ulonglong) -> c_int,
    exec: *mut usize,
    graph: usize,
    flags: c_ulonglong,
) -> c_int {
    // SAFETY: passed on. Without parameters there is no stream to upload in.
    unsafe { instantiated(ready, exec, graph, None, || real(exec, graph, flags)) }
}

pub(crate) unsafe fn instantiate_with_params(
    ready: &'static Ready,
    real: unsafe extern "C" fn(*mut usize, usize, *mut InstantiateParams) -> c_int,
    exec: *mut usize,
    graph: usize,
    params: *mut InstantiateParams,
) -> c_int {
    // SAFETY: null, or the caller's.
    let upload = unsafe { params.as_ref() }
        .filter(|params| params.flags & UPLOAD != 0)
        .map(|params| params.stream);
    // SAFETY: passed on.
    unsafe { instantiated(ready, exec, graph, upload, || real(exec, graph, params)) }
}

pub(crate) unsafe fn upload(
    ready: &'static Ready,
    real: unsafe extern "C" fn(usize, usize) -> c_int,
    exec: usize,
    stream: usize,
) -> c_int {
    // SAFETY: passed on.
    with_memory(ready, exec, stream, || unsafe { real(exec, stream) })
}

pub(crate) unsafe fn launch<const PER_THREAD: bool>(
    ready: &'static Ready,
    real: unsafe extern "C" fn(usize, usize) -> c_int,
    exec: usize,
    stream: usize,
) -> c_int {
    at_slow_moment(ready);
    let own = compute::of_name::<PER_THREAD>(stream);
    compute::launch(ready, own, || {
        // SAFETY: passed on.
        with_memory(ready, exec, stream, || unsafe { real(exec, stream) })
    })
}

/// Calls `pass`, by which a graph gets its memory.
fn with_memory(ready: &'static Ready, exec: usize, stream: usize, pass: impl FnOnce() -> c_int) -> c_int {
    if !used() {
        return pass();
    }
    match ready.tables.graphs.with(exec as u64, |needs| needs.clone()) {
        Some(needs) => mapped(ready, &needs, stream, pass),
        None => {
            // It may free what another graph has allocated.
            let result = pass();
            settle_all(ready);
            result
        }
    }
}

pub(crate) unsafe fn end_capture(
    ready: &'static Ready,
    real: unsafe extern "C" fn(usize, *mut usize) -> c_int,
    stream: usize,
    graph: *mut usize,
) -> c_int {
    // SAFETY: passed on.
    let end = || unsafe { real(stream, graph) };
    captures::end(&ready.gpus, || compute::streams::capture_ends(stream, end))
}

pub(crate) unsafe fn end_capture_to_list(
    ready: &'static Ready,
    real: unsafe extern "C" fn(usize) -> c_int,
    stream: usize,
) -> c_int {
    // SAFETY: passed on.
    let end = || unsafe { real(stream) };
    captures::end(&ready.gpus, || compute::streams::capture_ends(stream, end))
}

pub(crate) unsafe fn destroy(ready: &'static Ready, real: unsafe extern "C" fn(usize) -> c_int, exec: usize) -> c_int {
    // Out of the table first: once destroyed, the driver may give the handle to another thread.
    let needs = used().then(|| ready.tables.graphs.remove(exec as u64)).flatten();
    // SAFETY: passed on.
    let result = unsafe { real(exec) };
    match needs {
        Some(needs) if result == SUCCESS => {
            leave(ready, &needs);
            settle_all(ready);
        }
        Some(needs) => {
            ready.tables.graphs.insert(exec as u64, needs);
        }
        None => {}
    }
    result
}

/// After an executable graph took over the parameters of `graph`.
fn updated(ready: &Ready, exec: usize, graph: usize, result: c_int) -> c_int {
    expect_growth(ready);
    if result == SUCCESS && used() {
        let needs = needs_of(ready, graph);
        enter(ready, &needs);
        let before = ready.tables.graphs.insert(exec as u64, needs);
        before.iter().for_each(|needs| leave(ready, needs));
    }
    result
}

pub(crate) unsafe fn update(
    ready: &'static Ready,
    real: unsafe extern "C" fn(usize, usize, *mut usize, *mut c_int) -> c_int,
    exec: usize,
    graph: usize,
    bad: *mut usize,
    outcome: *mut c_int,
) -> c_int {
    // SAFETY: passed on.
    updated(ready, exec, graph, unsafe { real(exec, graph, bad, outcome) })
}

pub(crate) unsafe fn update_v2(
    ready: &'static Ready,
    real: unsafe extern "C" fn(usize, usize, *mut c_void) -> c_int,
    exec: usize,
    graph: usize,
    outcome: *mut c_void,
) -> c_int {
    // SAFETY: passed on.
    updated(ready, exec, graph, unsafe { real(exec, graph, outcome) })
}

pub(crate) unsafe fn trim(ready: &'static Ready, real: unsafe extern "C" fn(c_int) -> c_int, device: c_int) -> c_int {
    let Some(devices) = ready.devices() else {
        // SAFETY: passed on: the driver says that it is not initialised.
        return unsafe { real(device) };
    };
    let Some(device) = devices.real(device) else {
        return INVALID_DEVICE;
    };
    // SAFETY: passed on, with the real device.
    let result = unsafe { real(device) };
    settle_all(ready);
    result
}

// === Nodes that allocate ===

/// Calls `add` with real devices in a copy of `params`, and tells the caller the address.
///
/// # Safety
/// `params` is the caller's, to be read and written.
unsafe fn added(ready: &'static Ready, params: &mut AllocNode, add: impl FnOnce(&mut AllocNode) -> c_int) -> c_int {
    let Some(devices) = ready.devices() else {
        return add(params);
    };
    let mut own = *params;
    let location = match own.pool.location.real(devices) {
        Ok(location) => location,
        Err(error) => return error,
    };
    own.pool.location = location;
    // SAFETY: as promised, the caller's list.
    let result = unsafe {
        with_real(ready, own.access, own.access_count, |access| {
            own.access = access;
            add(&mut own)
        })
    };
    params.pointer = own.pointer;
    result
}

pub(crate) unsafe fn add_alloc(
    ready: &'static Ready,
    real: unsafe extern "C" fn(*mut usize, usize, *const usize, usize, *mut AllocNode) -> c_int,
    node: *mut usize,
    graph: usize,
    after: *const usize,
    count: usize,
    params: *mut AllocNode,
) -> c_int {
    // SAFETY: null, or the caller's; passed on.
    unsafe {
        match params.as_mut() {
            Some(params) => added(ready, params, |own| real(node, graph, after, count, own)),
            None => real(node, graph, after, count, params),
        }
    }
}

/// Calls `add` with real devices if `params` are those of a node that allocates.
///
/// # Safety
/// `params` is null or the caller's.
unsafe fn added_any(
    ready: &'static Ready,
    params: *mut NodeParams,
    add: impl FnOnce(*mut NodeParams) -> c_int,
) -> c_int {
    // SAFETY: as promised.
    unsafe {
        if params.is_null() || (*params).kind != MEM_ALLOC {
            return add(params);
        }
        let mut own = *params;
        added(ready, &mut (*params).alloc, |alloc| {
            own.alloc = *alloc;
            let result = add(&mut own);
            alloc.pointer = own.alloc.pointer;
            result
        })
    }
}

pub(crate) unsafe fn add(
    ready: &'static Ready,
    real: unsafe extern "C" fn(*mut usize, usize, *const usize, usize, *mut NodeParams) -> c_int,
    node: *mut usize,
    graph: usize,
    after: *const usize,
    count: usize,
    params: *mut NodeParams,
) -> c_int {
    // SAFETY: passed on.
    unsafe { added_any(ready, params, |params| real(node, graph, after, count, params)) }
}

pub(crate) unsafe fn add_v2(
    ready: &'static Ready,
    real: unsafe extern "C" fn(*mut usize, usize, *const usize, *const c_void, usize, *mut NodeParams) -> c_int,
    node: *mut usize,
    graph: usize,
    after: *const usize,
    edges: *const c_void,
    count: usize,
    params: *mut NodeParams,
) -> c_int {
    // SAFETY: passed on.
    unsafe { added_any(ready, params, |params| real(node, graph, after, edges, count, params)) }
}

pub(crate) unsafe fn alloc_params(
    ready: &'static Ready,
    real: unsafe extern "C" fn(usize, *mut AllocNode) -> c_int,
    node: usize,
    params: *mut AllocNode,
) -> c_int {
    // SAFETY: passed on.
    let result = unsafe { real(node, params) };
    // SAFETY: null, or written by the driver. The list of accesses is the driver's own: it stays.
    if let (SUCCESS, Some(params), Some(devices)) = (result, unsafe { params.as_mut() }, ready.devices()) {
        params.pool.location = params.pool.location.virtual_of(devices);
    }
    result
}

pub(crate) unsafe fn node_params(
    ready: &'static Ready,
    real: unsafe extern "C" fn(usize, *mut NodeParams) -> c_int,
    node: usize,
    params: *mut NodeParams,
) -> c_int {
    // SAFETY: passed on.
    let result = unsafe { real(node, params) };
    // SAFETY: null, or written by the driver.
    if let (SUCCESS, Some(params), Some(devices)) = (result, unsafe { params.as_mut() }, ready.devices())
        && params.kind == MEM_ALLOC
    {
        params.alloc.pool.location = params.alloc.pool.location.virtual_of(devices);
    }
    result
}
