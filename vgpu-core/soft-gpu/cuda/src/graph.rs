//! Graphs as far as they take time: nodes with a cost, and the capture of a stream into one. The order of nodes is
//! kept, their edges are accepted and not stored: a GPU's work runs in order here anyway.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use crate::code::{Code, ILLEGAL_STATE, INVALID_HANDLE, INVALID_VALUE, Res, STREAM_CAPTURE_UNMATCHED};
use crate::driver;
use crate::ffi::{In, Out};
use crate::launch::Shape;
use crate::stream;

/// What a stream collects while it is captured.
#[derive(Default)]
pub(crate) struct Capture {
    nodes: Vec<Node>,
    id: u64,
}

impl Capture {
    pub(crate) fn add(&mut self, cost: u64) {
        self.nodes.push(Node {
            handle: 0,
            kind: KERNEL,
            cost,
        });
    }
}

#[derive(Clone)]
struct Node {
    handle: u64,
    kind: u32,
    cost: u64,
}

/// Node types by number.
const KERNEL: u32 = 0;
const MEMCPY: u32 = 1;
const MEMSET: u32 = 2;
const HOST: u32 = 3;
const EMPTY: u32 = 5;

/// Graphs and their executable copies: the latter by handle too.
static GRAPHS: Mutex<Option<HashMap<u64, Vec<Node>>>> = Mutex::new(None);

fn with<T>(act: impl FnOnce(&mut HashMap<u64, Vec<Node>>) -> Result<T, Code>) -> Result<T, Code> {
    act(GRAPHS
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .get_or_insert_default())
}

fn keep(out: Out<u64>, nodes: Vec<Node>) -> Res {
    let handle = driver::get()?.handle();
    with(|graphs| Ok(graphs.insert(handle, nodes)))?;
    out.set(handle)
}

fn add(out: Out<u64>, graph: u64, kind: u32, cost: u64) -> Res {
    let handle = driver::get()?.handle();
    with(|graphs| {
        graphs
            .get_mut(&graph)
            .ok_or(INVALID_VALUE)?
            .push(Node { handle, kind, cost });
        Ok(())
    })?;
    out.set(handle)
}

fn copy(out: Out<u64>, graph: u64) -> Res {
    keep(out, with(|graphs| graphs.get(&graph).cloned().ok_or(INVALID_VALUE))?)
}

fn drop_one(handle: u64) -> Res {
    driver::get()?;
    with(|graphs| graphs.remove(&handle).map(|_| ()).ok_or(INVALID_VALUE))
}

/// CUDA_KERNEL_NODE_PARAMS begins with the function and the shape.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct KernelNode {
    function: u64,
    shape: Shape,
}

fn capture<T>(stream: u64, act: impl FnOnce(&mut Option<Capture>) -> Result<T, Code>) -> Result<T, Code> {
    driver::get()?;
    let stream = stream::created(stream)?.ok_or(ILLEGAL_STATE)?;
    act(&mut stream.capture.lock().unwrap_or_else(PoisonError::into_inner))
}

soft_gpu::api! {
    fn cuGraphCreate(out: Out<u64>, flags: u32) {
        if flags == 0 { keep(out, Vec::new()) } else { Err(INVALID_VALUE) }
    }

    fn cuGraphDestroy(graph: u64) {
        drop_one(graph)
    }

    fn cuGraphClone(out: Out<u64>, graph: u64) {
        copy(out, graph)
    }

    fn cuGraphAddKernelNode_v2(out: Out<u64>, graph: u64, _after: In<u64>, _count: u64, node: In<KernelNode>) {
        let KernelNode { shape, .. } = node.get()?;
        add(out, graph, KERNEL, shape.cost(driver::get()?)?)
    }

    fn cuGraphAddEmptyNode(out: Out<u64>, graph: u64, _after: In<u64>, _count: u64) {
        add(out, graph, EMPTY, 0)
    }

    fn cuGraphAddMemcpyNode(out: Out<u64>, graph: u64, _after: In<u64>, _count: u64, _copy: In<u64>, _context: u64) {
        add(out, graph, MEMCPY, 0)
    }

    fn cuGraphAddMemsetNode(out: Out<u64>, graph: u64, _after: In<u64>, _count: u64, _set: In<u64>, _context: u64) {
        add(out, graph, MEMSET, 0)
    }

    fn cuGraphAddHostNode(out: Out<u64>, graph: u64, _after: In<u64>, _count: u64, _call: In<u64>) {
        add(out, graph, HOST, 0)
    }

    fn cuGraphAddDependencies(graph: u64, _from: In<u64>, _to: In<u64>, _count: u64) {
        with(|graphs| graphs.get(&graph).map(|_| ()).ok_or(INVALID_VALUE))
    }

    fn cuGraphGetNodes(graph: u64, nodes: Out<u64>, count: Out<u64>) {
        let list: Vec<u64> = with(|graphs| {
            let nodes = graphs.get(&graph).ok_or(INVALID_VALUE)?;
            Ok(nodes.iter().map(|node| node.handle).collect())
        })?;
        if nodes.given() {
            nodes.fill(&list[..list.len().min(count.get()? as usize)])?;
        }
        count.set(list.len() as u64)
    }

    fn cuGraphNodeGetType(node: u64, kind: Out<u32>) {
        driver::get()?;
        let found = with(|graphs| {
            let kind = graphs.values().flatten().find(|one| one.handle == node).map(|one| one.kind);
            kind.ok_or(INVALID_HANDLE)
        });
        kind.set(found?)
    }

    fn cuGraphInstantiateWithFlags(out: Out<u64>, graph: u64, _flags: u64) {
        copy(out, graph)
    }

    fn cuGraphInstantiateWithParams(out: Out<u64>, graph: u64, _parameters: In<u64>) {
        copy(out, graph)
    }

    fn cuGraphInstantiate_v2(out: Out<u64>, graph: u64, _bad: In<u64>, _log: In<u8>, _room: u64) {
        copy(out, graph)
    }

    fn cuGraphExecDestroy(graph: u64) {
        drop_one(graph)
    }

    fn cuGraphUpload(graph: u64, stream: u64) {
        stream::gpu_of(driver::get()?, stream)?;
        with(|graphs| graphs.get(&graph).map(|_| ()).ok_or(INVALID_VALUE))
    }

    fn cuGraphLaunch(graph: u64, stream: u64) {
        let driver = driver::get()?;
        let cost = with(|graphs| {
            let nodes = graphs.get(&graph).ok_or(INVALID_VALUE)?;
            Ok(nodes.iter().map(|node| node.cost).fold(0, u64::saturating_add))
        })?;
        stream::queue(driver, stream, cost)
    }

    fn cuStreamBeginCapture_v2(stream: u64, _mode: u32) {
        let id = driver::get()?.handle();
        capture(stream, |capture| {
            if capture.is_some() {
                return Err(ILLEGAL_STATE);
            }
            *capture = Some(Capture { nodes: Vec::new(), id });
            Ok(())
        })
    }

    fn cuStreamEndCapture(stream: u64, out: Out<u64>) {
        let mut captured = capture(stream, |capture| capture.take().ok_or(STREAM_CAPTURE_UNMATCHED))?;
        for node in &mut captured.nodes {
            node.handle = driver::get()?.handle();
        }
        keep(out, captured.nodes)
    }

    fn cuStreamIsCapturing(stream: u64, out: Out<u32>) {
        driver::get()?;
        let active = match stream::created(stream)? {
            Some(stream) => stream.capture.lock().unwrap_or_else(PoisonError::into_inner).is_some(),
            None => false,
        };
        out.set(u32::from(active))
    }

    fn cuStreamGetCaptureInfo_v2(
        stream: u64, status: Out<u32>, id: Out<u64>, _graph: Out<u64>, _after: Out<u64>, _count: Out<u64>,
    ) {
        driver::get()?;
        let active = match stream::created(stream)? {
            Some(stream) => stream.capture.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(|c| c.id),
            None => None,
        };
        id.offer(active.unwrap_or(0));
        status.set(u32::from(active.is_some()))
    }

    fn cuThreadExchangeStreamCaptureMode(mode: Out<u32>) {
        driver::get()?;
        // Modes forbid unsafe calls while capturing; none of ours is.
        mode.get().map(|_| ())
    }
}
