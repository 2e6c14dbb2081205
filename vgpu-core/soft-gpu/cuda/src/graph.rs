//! Graphs, as far as they need time and memory: nodes with a cost, and the capture of a stream into a graph. The order
//! of nodes is kept. Their edges are accepted and not stored, because a GPU's work runs in order here anyway.

use std::collections::HashMap;
use std::sync::Mutex;

use soft_gpu::lock;

use soft_gpu::timeline::Cost;

use crate::code::{
    Code, GRAPH_EXEC_UPDATE_FAILURE, ILLEGAL_STATE, INVALID_HANDLE, INVALID_VALUE, NOT_SUPPORTED, Res,
    STREAM_CAPTURE_UNMATCHED,
};
use crate::driver::{self, Driver};
use crate::ffi::{In, Out};
use crate::graph_memory::{Plan, Range};
use crate::launch::{Arguments, Shape};
use crate::stream;

/// The graph into which a stream is captured.
#[derive(Default)]
pub(crate) struct Capture {
    nodes: Vec<Node>,
    id: u64,
}

impl Capture {
    pub(crate) fn add(&mut self, cost: Cost) {
        self.nodes.push(Node::new(KERNEL, cost, Part::Work));
    }

    pub(crate) fn alloc(&mut self, range: Range) {
        self.nodes.push(Node::new(MEM_ALLOC, Cost::NONE, Part::Alloc(range)));
    }

    pub(crate) fn free(&mut self, address: u64) {
        self.nodes.push(Node::new(MEM_FREE, Cost::NONE, Part::Free(address)));
    }

    /// Adds a graph that is launched into a captured stream: it becomes part of the capture.
    fn child(&mut self, nodes: Vec<Node>) {
        self.nodes.extend(nodes);
    }
}

#[derive(Clone)]
struct Node {
    handle: u64,
    kind: u32,
    cost: Cost,
    part: Part,
}

/// The effect of a node besides taking time.
#[derive(Clone, Copy)]
enum Part {
    Work,
    Alloc(Range),
    Free(u64),
    Child(u64),
}

impl Node {
    fn new(kind: u32, cost: Cost, part: Part) -> Self {
        Self {
            handle: 0,
            kind,
            cost,
            part,
        }
    }
}

/// Node types by number.
const KERNEL: u32 = 0;
const MEMCPY: u32 = 1;
const MEMSET: u32 = 2;
const HOST: u32 = 3;
const CHILD: u32 = 4;
const EMPTY: u32 = 5;
const MEM_ALLOC: u32 = 10;
const MEM_FREE: u32 = 11;

/// Graphs and their executable copies, all by handle.
static GRAPHS: Mutex<Option<HashMap<u64, Vec<Node>>>> = Mutex::new(None);

fn with<T>(act: impl FnOnce(&mut HashMap<u64, Vec<Node>>) -> Result<T, Code>) -> Result<T, Code> {
    act(lock(&GRAPHS).get_or_insert_default())
}

fn keep(out: Out<u64>, nodes: Vec<Node>) -> Res {
    let handle = driver::get()?.handle();
    with(|graphs| Ok(graphs.insert(handle, nodes)))?;
    out.set(handle)
}

fn add(out: Out<u64>, graph: u64, kind: u32, cost: Cost) -> Res {
    push(out, graph, Node::new(kind, cost, Part::Work))
}

fn push(out: Out<u64>, graph: u64, mut node: Node) -> Res {
    let handle = driver::get()?.handle();
    node.handle = handle;
    with(|graphs| {
        graphs.get_mut(&graph).ok_or(INVALID_VALUE)?.push(node);
        Ok(())
    })?;
    out.set(handle)
}

fn nodes(graph: u64) -> Result<Vec<Node>, Code> {
    with(|graphs| graphs.get(&graph).cloned().ok_or(INVALID_VALUE))
}

fn copy(out: Out<u64>, graph: u64) -> Res {
    keep(out, nodes(graph)?)
}

fn drop_one(handle: u64) -> Res {
    driver::get()?;
    with(|graphs| graphs.remove(&handle).map(|_| ()).ok_or(INVALID_VALUE))
}

/// Returns the nodes of a graph, with child graphs replaced by their nodes.
fn flat(graph: u64) -> Result<Vec<Node>, Code> {
    let mut all = Vec::new();
    for node in nodes(graph)? {
        match node.part {
            Part::Child(child) => all.extend(flat(child)?),
            _ => all.push(node),
        }
    }
    Ok(all)
}

fn plan(nodes: &[Node], flags: u64) -> Plan {
    let mut plan = Plan::new(flags & AUTO_FREE != 0);
    for node in nodes {
        match node.part {
            Part::Alloc(range) => plan.alloc(range),
            Part::Free(address) => plan.free(address),
            Part::Work | Part::Child(_) => {}
        }
    }
    plan
}

/// CUDA_GRAPH_INSTANTIATE_FLAG_*.
const AUTO_FREE: u64 = 1;
const UPLOAD: u64 = 2;

fn instantiate(out: Out<u64>, graph: u64, flags: u64) -> Result<u64, Code> {
    let nodes = flat(graph)?;
    let plan = plan(&nodes, flags);
    let driver = driver::get()?;
    let handle = driver.handle();
    with(|graphs| Ok(graphs.insert(handle, nodes)))?;
    driver.memory.graphs.add(handle, plan);
    out.set(handle)?;
    Ok(handle)
}

/// Returns the cost of running the nodes one after the other: the sum of their times, and the largest width.
fn sum(nodes: &[Node]) -> Cost {
    let kernels = nodes.iter().map(|node| node.cost).filter(|cost| cost.ns > 0);
    let both = |one: Cost, other: Cost| Cost {
        ns: one.ns.saturating_add(other.ns),
        width: one.width.max(other.width),
    };
    kernels.reduce(both).unwrap_or(Cost::NONE)
}

fn alloc_node(driver: &Driver, params: Out<AllocNode>) -> Result<Node, Code> {
    let mut asked = params.get()?;
    // Allocation type, handle types, location type, location.
    let [kind, handles, location, device] = asked.pool;
    if kind != 1 || handles != 0 || location != 1 || asked.size == 0 {
        return Err(INVALID_VALUE);
    }
    let range = driver.memory.graphs.reserve(driver, driver.gpu(device)?, asked.size)?;
    asked.address = range.address;
    params.set(asked)?;
    Ok(Node::new(MEM_ALLOC, Cost::NONE, Part::Alloc(range)))
}

fn any_node(driver: &Driver, params: Out<u32>, kind: u32) -> Result<Node, Code> {
    const PART: usize = 16;
    match kind {
        EMPTY => Ok(Node::new(EMPTY, Cost::NONE, Part::Work)),
        KERNEL => {
            let cost = params.inside::<KernelNode>(PART).get()?.cost()?;
            Ok(Node::new(KERNEL, cost, Part::Work))
        }
        MEM_ALLOC => alloc_node(driver, params.inside(PART)),
        MEM_FREE => Ok(Node::new(
            MEM_FREE,
            Cost::NONE,
            Part::Free(params.inside::<u64>(PART).get()?),
        )),
        _ => Err(NOT_SUPPORTED),
    }
}

fn find(node: u64) -> Result<Node, Code> {
    driver::get()?;
    with(|graphs| {
        let found = graphs.values().flatten().find(|one| one.handle == node);
        found.cloned().ok_or(INVALID_HANDLE)
    })
}

/// Changes the cost of a kernel's node.
fn set_kernel(graph: u64, node: u64, cost: Cost) -> Res {
    with(|graphs| {
        let mut nodes = graphs.get_mut(&graph).ok_or(INVALID_VALUE)?.iter_mut();
        let found = nodes.find(|one| one.handle == node && one.kind == KERNEL);
        found.ok_or(INVALID_VALUE)?.cost = cost;
        Ok(())
    })
}

/// Returns the graph to which a node was added: the oldest one that has it, because copies were made later.
fn graph_of(node: u64) -> Result<u64, Code> {
    with(|graphs| {
        let has_node = |(_, nodes): &(&u64, &Vec<Node>)| nodes.iter().any(|one| one.handle == node);
        let found = graphs.iter().filter(has_node).map(|(graph, _)| *graph);
        found.min().ok_or(INVALID_VALUE)
    })
}

/// Gives an executable graph the costs of a graph with the same nodes.
fn update(exec: u64, graph: u64) -> Res {
    let new = flat(graph)?;
    with(|graphs| {
        let old = graphs.get_mut(&exec).ok_or(INVALID_VALUE)?;
        let is_same =
            |(one, other): (&Node, &Node)| one.kind == other.kind && !matches!(one.kind, MEM_ALLOC | MEM_FREE);
        if old.len() != new.len() || !old.iter().zip(&new).all(is_same) {
            return Err(GRAPH_EXEC_UPDATE_FAILURE);
        }
        for (one, other) in old.iter_mut().zip(new) {
            one.cost = other.cost;
        }
        Ok(())
    })
}

/// CUgraphExecUpdateResult: success, or that the nodes differ.
fn outcome(result: Res) -> u32 {
    if result.is_ok() { 0 } else { 2 }
}

/// CUDA_MEM_ALLOC_NODE_PARAMS: the pool's properties, who may access it, its size and its address.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct AllocNode {
    pool: [i32; 4],
    rest: [u64; 9],
    access: u64,
    access_count: u64,
    size: u64,
    address: u64,
}
const _: () = assert!(std::mem::size_of::<AllocNode>() == 120);

/// How CUDA_KERNEL_NODE_PARAMS begins.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct KernelNode {
    function: u64,
    shape: Shape,
    shared: u32,
    arguments: Arguments,
}
const _: () = assert!(std::mem::size_of::<KernelNode>() == 56);

impl KernelNode {
    fn cost(self) -> Result<Cost, Code> {
        self.shape.cost(driver::get()?, self.function, self.arguments)
    }
}

fn capture<T>(stream: u64, act: impl FnOnce(&mut Option<Capture>) -> Result<T, Code>) -> Result<T, Code> {
    driver::get()?;
    let stream = stream::created(stream)?.ok_or(ILLEGAL_STATE)?;
    act(&mut lock(&stream.capture))
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
        add(out, graph, KERNEL, node.get()?.cost()?)
    }

    fn cuGraphAddEmptyNode(out: Out<u64>, graph: u64, _after: In<u64>, _count: u64) {
        add(out, graph, EMPTY, Cost::NONE)
    }

    fn cuGraphAddMemcpyNode(out: Out<u64>, graph: u64, _after: In<u64>, _count: u64, _copy: In<u64>, _context: u64) {
        add(out, graph, MEMCPY, Cost::NONE)
    }

    fn cuGraphAddMemsetNode(out: Out<u64>, graph: u64, _after: In<u64>, _count: u64, _set: In<u64>, _context: u64) {
        add(out, graph, MEMSET, Cost::NONE)
    }

    fn cuGraphAddHostNode(out: Out<u64>, graph: u64, _after: In<u64>, _count: u64, _call: In<u64>) {
        add(out, graph, HOST, Cost::NONE)
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
        kind.set(find(node)?.kind)
    }

    fn cuGraphAddMemAllocNode(out: Out<u64>, graph: u64, _after: In<u64>, _count: u64, params: Out<AllocNode>) {
        push(out, graph, alloc_node(driver::get()?, params)?)
    }

    fn cuGraphAddMemFreeNode(out: Out<u64>, graph: u64, _after: In<u64>, _count: u64, address: u64) {
        push(out, graph, Node::new(MEM_FREE, Cost::NONE, Part::Free(address)))
    }

    fn cuGraphAddChildGraphNode(out: Out<u64>, graph: u64, _after: In<u64>, _count: u64, child: u64) {
        let own = driver::get()?.handle();
        let copied = nodes(child)?;
        with(|graphs| Ok(graphs.insert(own, copied)))?;
        push(out, graph, Node::new(CHILD, Cost::NONE, Part::Child(own)))
    }

    fn cuGraphAddNode(out: Out<u64>, graph: u64, _after: In<u64>, _count: u64, params: Out<u32>) {
        push(out, graph, any_node(driver::get()?, params, params.get()?)?)
    }

    fn cuGraphAddNode_v2(
        out: Out<u64>, graph: u64, _after: In<u64>, _edges: In<u64>, _count: u64, params: Out<u32>,
    ) {
        push(out, graph, any_node(driver::get()?, params, params.get()?)?)
    }

    fn cuGraphMemAllocNodeGetParams(node: u64, params: Out<AllocNode>) {
        let Part::Alloc(range) = find(node)?.part else { return Err(INVALID_VALUE) };
        let device = driver::get()?.ordinal(range.gpu);
        let (size, address) = (range.size, range.address);
        params.set(AllocNode { pool: [1, 0, 1, device], rest: [0; 9], access: 0, access_count: 0, size, address })
    }

    /// Works only for nodes that allocate; the parameters of other nodes are not kept.
    fn cuGraphNodeGetParams(node: u64, params: Out<[u64; 32]>) {
        if !matches!(find(node)?.part, Part::Alloc(_)) {
            return Err(NOT_SUPPORTED);
        }
        let mut whole = [0; 32];
        whole[0] = 10; // CU_GRAPH_NODE_TYPE_MEM_ALLOC
        params.set(whole)?;
        match cuGraphMemAllocNodeGetParams(node, params.inside(16)) {
            0 => Ok(()),
            code => Err(Code(code)),
        }
    }

    fn cuGraphMemFreeNodeGetParams(node: u64, out: Out<u64>) {
        let Part::Free(address) = find(node)?.part else { return Err(INVALID_VALUE) };
        out.set(address)
    }

    fn cuGraphChildGraphNodeGetGraph(node: u64, out: Out<u64>) {
        let Part::Child(graph) = find(node)?.part else { return Err(INVALID_VALUE) };
        out.set(graph)
    }

    fn cuGraphInstantiateWithFlags(out: Out<u64>, graph: u64, flags: u64) {
        instantiate(out, graph, flags).map(|_| ())
    }

    fn cuGraphInstantiateWithParams(out: Out<u64>, graph: u64, parameters: Out<[u64; 2]>) {
        let [flags, stream] = parameters.get()?;
        let exec = instantiate(out, graph, flags)?;
        if flags & UPLOAD != 0 {
            let driver = driver::get()?;
            stream::gpu_of(driver, stream)?;
            driver.memory.graphs.upload(driver, exec)?;
        }
        Ok(())
    }

    fn cuGraphInstantiate_v2(out: Out<u64>, graph: u64, _bad: In<u64>, _log: In<u8>, _room: u64) {
        instantiate(out, graph, 0).map(|_| ())
    }

    fn cuGraphKernelNodeSetParams_v2(node: u64, params: In<KernelNode>) {
        set_kernel(graph_of(node)?, node, params.get()?.cost()?)
    }

    fn cuGraphExecKernelNodeSetParams_v2(exec: u64, node: u64, params: In<KernelNode>) {
        set_kernel(exec, node, params.get()?.cost()?)
    }

    fn cuGraphExecUpdate(exec: u64, graph: u64, bad: Out<u64>, result: Out<u32>) {
        let updated = update(exec, graph);
        bad.offer(0);
        result.offer(outcome(updated));
        updated
    }

    fn cuGraphExecUpdate_v2(exec: u64, graph: u64, result: Out<[u64; 3]>) {
        let updated = update(exec, graph);
        result.offer([outcome(updated).into(), 0, 0]);
        updated
    }

    fn cuGraphExecDestroy(graph: u64) {
        drop_one(graph)?;
        let driver = driver::get()?;
        driver.memory.graphs.remove(driver, graph);
        Ok(())
    }

    fn cuGraphUpload(graph: u64, stream: u64) {
        let driver = driver::get()?;
        stream::gpu_of(driver, stream)?;
        nodes(graph)?;
        driver.memory.graphs.upload(driver, graph)
    }

    fn cuGraphLaunch(graph: u64, stream: u64) {
        let driver = driver::get()?;
        let nodes = nodes(graph)?;
        if let Some(stream) = stream::created(stream)?
            && let Some(capture) = lock(&stream.capture).as_mut()
        {
            capture.child(nodes);
            return Ok(());
        }
        let cost = sum(&nodes);
        driver.memory.graphs.launch(driver, graph)?;
        stream::queue(driver, stream, cost)?;
        driver.memory.graphs.busy_until(graph, stream::last(driver, stream)?);
        Ok(())
    }

    fn cuDeviceGraphMemTrim(device: i32) {
        let driver = driver::get()?;
        driver.memory.graphs.trim(driver, driver.gpu(device)?);
        Ok(())
    }

    fn cuDeviceGetGraphMemAttribute(device: i32, attribute: u32, value: Out<u64>) {
        let driver = driver::get()?;
        value.set(driver.memory.graphs.attribute(driver.gpu(device)?, attribute)? * driver.state().profile().granularity)
    }

    fn cuDeviceSetGraphMemAttribute(device: i32, attribute: u32, value: Out<u64>) {
        let driver = driver::get()?;
        // Only the high-water marks can be set, and only to zero.
        if value.get()? != 0 {
            return Err(INVALID_VALUE);
        }
        driver.memory.graphs.reset(driver.gpu(device)?, attribute)
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
        let active = stream::created(stream)?.is_some_and(|stream| lock(&stream.capture).is_some());
        out.set(u32::from(active))
    }

    fn cuStreamGetCaptureInfo_v2(
        stream: u64, status: Out<u32>, id: Out<u64>, _graph: Out<u64>, _after: Out<u64>, _count: Out<u64>,
    ) {
        driver::get()?;
        let active = stream::created(stream)?.and_then(|stream| lock(&stream.capture).as_ref().map(|capture| capture.id));
        id.offer(active.unwrap_or(0));
        status.set(u32::from(active.is_some()))
    }

    fn cuThreadExchangeStreamCaptureMode(mode: Out<u32>) {
        driver::get()?;
        // The capture mode forbids unsafe calls during a capture; all calls here are safe.
        mode.get().map(|_| ())
    }
}
