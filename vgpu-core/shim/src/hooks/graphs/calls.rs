//! Hooks for graphs. The memory that a graph needs is counted when it is instantiated and charged when it is launched
//! (`graphs`). Nodes that allocate contain device numbers, which are translated.

use crate::codes::{INVALID_DEVICE, SUCCESS};
use crate::hooks::contexts::measure::{at_slow_moment, expect_growth};
use crate::hooks::devices::locations::{Access, Located, Location, with_all_real};
use crate::hooks::graphs::launch::{enter, leave, mapped, settle_all};
use crate::hooks::{compute, memory};
use crate::process::Ready;
use crate::real::real;
use core::ffi::c_int;
use vgpu_core::memory::captures;
use vgpu_core::memory::granule::granules;
use vgpu_core::memory::graphs::{Needs, used};

const CHILD_GRAPH: c_int = 4;
const MEM_ALLOC: c_int = 10;
/// CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD.
const UPLOAD: u64 = 2;
/// Maximum depth of graphs within graphs.
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

/// CUgraphNodeParams. One of its forms is an [`AllocNode`].
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

impl Located for AllocNode {
    fn location(&mut self) -> &mut Location {
        &mut self.pool.location
    }
}

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
    let result = unsafe { real!(cuGraphMemAllocNodeGetParams)(node, params.as_mut_ptr()) };
    (result == SUCCESS).then_some(())?;
    // SAFETY: the driver has written it; all-zero would be valid too.
    let params = unsafe { params.assume_init() };
    let gpu = params.pool.location.real_gpu(ready.devices()?)?;
    Some((gpu, granules(params.bytes as u64)?))
}

// === Hooks ===

/// Instantiates `graph`, and uploads it in the stream `upload` if there is one.
pub(crate) unsafe fn instantiate(
    ready: &'static Ready,
    exec: *mut usize,
    graph: usize,
    upload: Option<usize>,
    next: impl FnOnce() -> c_int,
) -> c_int {
    expect_growth(ready);
    let needs = needs_of(ready, graph);
    if needs.is_empty() || exec.is_null() {
        return next();
    }
    enter(ready, &needs);
    let result = match upload {
        Some(stream) => mapped(ready, &needs, stream, next),
        None => next(),
    };
    if result == SUCCESS {
        // SAFETY: the driver has written it.
        let stale = ready.tables.graphs.insert(unsafe { *exec } as u64, needs);
        // The driver reuses a known handle only if the old graph was destroyed with its context, which is not reported
        // here.
        stale.iter().for_each(|needs| leave(ready, needs));
    } else {
        leave(ready, &needs);
    }
    result
}

pub(crate) unsafe fn instantiate_with_params(
    ready: &'static Ready,
    exec: *mut usize,
    graph: usize,
    params: *mut InstantiateParams,
    next: impl FnOnce() -> c_int,
) -> c_int {
    // SAFETY: null, or the caller's.
    let upload = unsafe { params.as_ref() }
        .filter(|params| params.flags & UPLOAD != 0)
        .map(|params| params.stream);
    // SAFETY: as promised.
    unsafe { instantiate(ready, exec, graph, upload, next) }
}

/// Launches `exec` in `stream`. `own` is the stream that the handle means in this function.
pub(crate) fn launch(
    ready: &'static Ready,
    exec: usize,
    stream: usize,
    own: usize,
    next: impl FnOnce() -> c_int,
) -> c_int {
    at_slow_moment(ready);
    compute::launch(ready, own, || upload(ready, exec, stream, next))
}

/// Calls `next`, which gives a graph its memory.
pub(crate) fn upload(ready: &'static Ready, exec: usize, stream: usize, next: impl FnOnce() -> c_int) -> c_int {
    if !used() {
        return next();
    }
    match ready.tables.graphs.with(exec as u64, |needs| needs.clone()) {
        Some(needs) => mapped(ready, &needs, stream, next),
        None => {
            // A graph without needs of its own may free what another graph has allocated.
            let result = next();
            settle_all(ready);
            result
        }
    }
}

pub(crate) fn end_capture(ready: &'static Ready, stream: usize, next: impl FnOnce() -> c_int) -> c_int {
    captures::end(&ready.gpus, || compute::streams::capture_ends(stream, next))
}

pub(crate) fn destroy(ready: &'static Ready, exec: usize, next: impl FnOnce() -> c_int) -> c_int {
    // Remove it from the table first: once it is destroyed, the driver may give the handle to another thread.
    let needs = used().then(|| ready.tables.graphs.remove(exec as u64)).flatten();
    let result = next();
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

/// Updates an executable graph, which takes over the parameters of `graph`.
pub(crate) fn update(ready: &'static Ready, exec: usize, graph: usize, next: impl FnOnce() -> c_int) -> c_int {
    let result = next();
    expect_growth(ready);
    if result == SUCCESS && used() {
        let needs = needs_of(ready, graph);
        enter(ready, &needs);
        let before = ready.tables.graphs.insert(exec as u64, needs);
        before.iter().for_each(|needs| leave(ready, needs));
    }
    result
}

pub(crate) fn trim(ready: &'static Ready, device: c_int, next: impl FnOnce(c_int) -> c_int) -> c_int {
    let Some(devices) = ready.devices() else {
        // The driver says that it is not initialised.
        return next(device);
    };
    let Some(device) = devices.real(device) else {
        return INVALID_DEVICE;
    };
    let result = next(device);
    settle_all(ready);
    result
}

// === Nodes that allocate ===

/// Calls `add` with real devices in a copy of `params`, and writes the address to `params`.
///
/// # Safety
/// `params` is the caller's, to be read and written.
unsafe fn added(ready: &'static Ready, params: &mut AllocNode, add: impl FnOnce(&mut AllocNode) -> c_int) -> c_int {
    let Some(devices) = ready.devices() else {
        return add(params);
    };
    let mut own = match params.with_real(devices) {
        Ok(own) => own,
        Err(error) => return error,
    };
    // SAFETY: as promised, the caller's list.
    let result = unsafe {
        with_all_real(ready, own.access, own.access_count, |access| {
            own.access = access;
            add(&mut own)
        })
    };
    params.pointer = own.pointer;
    result
}

pub(crate) unsafe fn add_alloc(
    ready: &'static Ready,
    params: *mut AllocNode,
    next: impl FnOnce(*mut AllocNode) -> c_int,
) -> c_int {
    // SAFETY: null, or the caller's.
    unsafe {
        match params.as_mut() {
            Some(params) => added(ready, params, |own| next(own)),
            None => next(params),
        }
    }
}

/// Adds a node. If it allocates, its device numbers are translated.
pub(crate) unsafe fn add(
    ready: &'static Ready,
    params: *mut NodeParams,
    next: impl FnOnce(*mut NodeParams) -> c_int,
) -> c_int {
    // SAFETY: as promised.
    unsafe {
        if params.is_null() || (*params).kind != MEM_ALLOC {
            return next(params);
        }
        let mut own = *params;
        added(ready, &mut (*params).alloc, |alloc| {
            own.alloc = *alloc;
            let result = next(&mut own);
            alloc.pointer = own.alloc.pointer;
            result
        })
    }
}

pub(crate) unsafe fn alloc_params(
    ready: &'static Ready,
    params: *mut AllocNode,
    next: impl FnOnce() -> c_int,
) -> c_int {
    let result = next();
    // SAFETY: null, or written by the driver. The list of accesses is the driver's own: it stays.
    if let (SUCCESS, Some(params), Some(devices)) = (result, unsafe { params.as_mut() }, ready.devices()) {
        params.pool.location = params.pool.location.virtual_of(devices);
    }
    result
}

pub(crate) unsafe fn node_params(
    ready: &'static Ready,
    params: *mut NodeParams,
    next: impl FnOnce() -> c_int,
) -> c_int {
    let result = next();
    // SAFETY: null, or written by the driver.
    if let (SUCCESS, Some(params), Some(devices)) = (result, unsafe { params.as_mut() }, ready.devices())
        && params.kind == MEM_ALLOC
    {
        params.alloc.pool.location = params.alloc.pool.location.virtual_of(devices);
    }
    result
}
