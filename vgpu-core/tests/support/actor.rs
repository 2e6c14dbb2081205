//! A client that makes random calls, and the memory that it holds.

use super::caller::Caller;
use super::{Bench, GRANULE, MIB};

/// The kinds of things that a client holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Pointer,
    Managed,
    Array,
    Mipmapped,
    Physical,
    Range(u64),
    Mapping(u64),
    Async,
    Pool,
    Graph,
    Exec,
    Module,
    Context,
    External,
    Host,
}

pub(crate) struct Random(pub(crate) u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        (self.next() >> 11) % end
    }

    /// Returns a size that is often small and rarely large.
    fn size(&mut self) -> u64 {
        let shift = self.below(18);
        let top = 512 << shift;
        top - self.below(top / 2)
    }
}

/// A client and what it holds, by slot.
pub(crate) struct Actor {
    pub(crate) caller: Caller,
    held: Vec<(u32, Kind)>,
    slot: u32,
}

/// The result of a call that the model expects.
pub(crate) enum Must {
    /// It must fit if this many bytes are free, and only then.
    Take(u64),
    Succeed,
    Anything,
}

impl Actor {
    pub(crate) fn new(bench: &Bench) -> Self {
        let mut caller = bench.caller(true);
        caller.init();
        Self {
            caller,
            held: Vec::new(),
            slot: 1,
        }
    }

    fn pick(&mut self, random: &mut Random, suits: impl Fn(Kind) -> bool) -> Option<(u32, Kind)> {
        let all: Vec<_> = self.held.iter().filter(|(_, kind)| suits(*kind)).copied().collect();
        (!all.is_empty()).then(|| all[random.below(all.len() as u64) as usize])
    }

    fn drop_slot(&mut self, slot: u32) {
        self.held.retain(|(known, _)| *known != slot);
    }

    /// Makes a call. If it succeeds, the client holds the new thing and no longer the old one.
    fn act(&mut self, line: &str, made: Option<Kind>, gone: Option<u32>) -> i32 {
        let code = self.caller.call(line);
        if code == 0 {
            if let Some(kind) = made {
                self.held.push((self.slot, kind));
                self.slot += 1;
            }
            if let Some(slot) = gone {
                self.drop_slot(slot);
            }
        }
        code
    }
}

/// The number of kinds of calls, and of those whose memory is charged before the call.
pub(crate) const KINDS: u64 = 34;
pub(crate) const AHEAD: u64 = 30;

/// Makes a random call of the first `kinds`. Returns the call, its result, and the result that the model expects.
pub(crate) fn step(actor: &mut Actor, random: &mut Random, kinds: u64) -> Option<(String, i32, Must)> {
    let (to, size) = (actor.slot, random.size());
    let granules = size.next_multiple_of(GRANULE);
    let makes = |line: String, kind, must| Some((line, Some(kind), None, must));
    let takes = |line: String, kind| makes(line, kind, Must::Take(granules));
    let does = |line: String, must| Some((line, None, None, must));
    let gives = |line: String, slot: u32| Some((line, None, Some(slot), Must::Succeed));
    let (line, made, gone, must) = match random.below(kinds) {
        0..=3 if size >= GRANULE => takes(format!("cuMemAlloc_v2 >{to} {size}"), Kind::Pointer),
        0..=3 => makes(format!("cuMemAlloc_v2 >{to} {size}"), Kind::Pointer, Must::Anything),
        4..=6 => {
            let (slot, _) = actor.pick(random, |kind| kind == Kind::Pointer)?;
            gives(format!("cuMemFree_v2 @{slot}"), slot)
        }
        7 => takes(format!("cuMemAllocManaged >{to} {size} 1"), Kind::Managed),
        8 => {
            let (slot, _) = actor.pick(random, |kind| kind == Kind::Managed)?;
            gives(format!("cuMemFree_v2 @{slot}"), slot)
        }
        9 => {
            let width = 1 + random.below(4096);
            let height = random.below(2048);
            let bytes = 4 * width * height.max(1);
            let line = format!("cuArrayCreate_v2 >{to} [{width},{height},0x100000020]");
            makes(line, Kind::Array, Must::Take(bytes.next_multiple_of(GRANULE)))
        }
        10 => {
            let side = 1 + random.below(1024);
            let line = format!("cuMipmappedArrayCreate >{to} [{side},{side},0,0x400000001,0] 4");
            makes(line, Kind::Mipmapped, Must::Anything)
        }
        11 => {
            let (slot, kind) = actor.pick(random, |kind| matches!(kind, Kind::Array | Kind::Mipmapped))?;
            let name = ["cuArrayDestroy", "cuMipmappedArrayDestroy"][usize::from(kind == Kind::Mipmapped)];
            gives(format!("{name} @{slot}"), slot)
        }
        12 | 13 => takes(format!("cuMemCreate >{to} {granules} [1,1,0,0] 0"), Kind::Physical),
        14 => makes(
            format!("cuMemAddressReserve >{to} {granules} 0 0 0"),
            Kind::Range(granules),
            Must::Succeed,
        ),
        15 => {
            // Mapped at the start of the range, so the mapping has the address of the range.
            let (range, kind) = actor.pick(random, |kind| matches!(kind, Kind::Range(_)))?;
            let (physical, _) = actor.pick(random, |kind| kind == Kind::Physical)?;
            let Kind::Range(bytes) = kind else { return None };
            let line = format!("cuMemMap @{range} {bytes} 0 @{physical} 0");
            let code = actor.caller.call(&line);
            if code == 0 {
                actor.drop_slot(range);
                actor.held.push((range, Kind::Mapping(bytes)));
            }
            return Some((line, code, Must::Anything));
        }
        16 => {
            let (slot, kind) = actor.pick(random, |kind| matches!(kind, Kind::Mapping(_)))?;
            let Kind::Mapping(bytes) = kind else { return None };
            let line = format!("cuMemUnmap @{slot} {bytes}");
            let code = actor.caller.call(&line);
            actor.drop_slot(slot);
            actor.held.push((slot, Kind::Range(bytes)));
            return Some((line, code, Must::Succeed));
        }
        17 => {
            let (slot, _) = actor.pick(random, |kind| kind == Kind::Physical)?;
            gives(format!("cuMemRelease @{slot}"), slot)
        }
        18 => {
            let (mapping, _) = actor.pick(random, |kind| matches!(kind, Kind::Mapping(_)))?;
            let line = format!("cuMemRetainAllocationHandle >{to} @{mapping}");
            makes(line, Kind::Physical, Must::Succeed)
        }
        19 | 20 => makes(format!("cuMemAllocAsync >{to} {size} 0"), Kind::Async, Must::Anything),
        21 => {
            let (slot, _) = actor.pick(random, |kind| kind == Kind::Async)?;
            let name = ["cuMemFree_v2", "cuMemFreeAsync"][random.below(2) as usize];
            gives(format!("{name} @{slot} 0"), slot)
        }
        22 => {
            let line = format!("cuMemPoolCreate >{to} [1,1,0,0,0,0,0,0,0,0,0]");
            makes(line, Kind::Pool, Must::Succeed)
        }
        23 => {
            let (pool, _) = actor.pick(random, |kind| kind == Kind::Pool)?;
            let line = format!("cuMemAllocFromPoolAsync >{to} {size} @{pool} 0");
            makes(line, Kind::Async, Must::Anything)
        }
        24 => {
            let (pool, _) = actor.pick(random, |kind| kind == Kind::Pool)?;
            match random.below(3) {
                0 => gives(format!("cuMemPoolDestroy @{pool}"), pool),
                1 => does(format!("cuMemPoolTrimTo @{pool} {size}"), Must::Succeed),
                _ => does(format!("cuMemPoolSetAttribute @{pool} 4 [{size}]"), Must::Succeed),
            }
        }
        25 => does("cuStreamSynchronize 0".into(), Must::Succeed),
        26 => return graph(actor, random),
        27 | 28 => {
            let (slot, _) = actor.pick(random, |kind| kind == Kind::Exec)?;
            let name = ["cuGraphUpload", "cuGraphLaunch"][usize::from(random.below(4) > 0)];
            does(format!("{name} @{slot} 0"), Must::Anything)
        }
        29 => match random.below(3) {
            0 => does("cuDeviceGraphMemTrim 0".into(), Must::Succeed),
            1 => {
                let (slot, _) = actor.pick(random, |kind| kind == Kind::Exec)?;
                gives(format!("cuGraphExecDestroy @{slot}"), slot)
            }
            _ => {
                let (graph, _) = actor.pick(random, |kind| kind == Kind::Graph)?;
                let line = format!("cuGraphInstantiateWithFlags >{to} @{graph} 0");
                makes(line, Kind::Exec, Must::Succeed)
            }
        },
        30 => {
            let line = format!("cuModuleLoadData >{to} \".version\\s8.0\\n\"");
            makes(line, Kind::Module, Must::Take(2 * MIB))
        }
        31 => match random.below(4) {
            0 => does(format!("cuCtxSetLimit 2 {}", (8 * MIB) + size), Must::Anything),
            _ => {
                let (slot, _) = actor.pick(random, |kind| kind == Kind::Module)?;
                gives(format!("cuModuleUnload @{slot}"), slot)
            }
        },
        32 => match actor.pick(random, |kind| kind == Kind::External) {
            Some((slot, _)) => gives(format!("cuDestroyExternalMemory @{slot}"), slot),
            None => takes(format!("cuImportExternalMemory >{to} [1,7,0,{size},0]"), Kind::External),
        },
        _ => match actor.pick(random, |kind| matches!(kind, Kind::Context | Kind::Host)) {
            Some((slot, Kind::Host)) => gives(format!("cuMemFreeHost @{slot}"), slot),
            Some((slot, _)) => {
                let code = actor.act(&format!("cuCtxDestroy_v2 @{slot}"), None, Some(slot));
                return Some((format!("cuCtxDestroy_v2 @{slot}"), code, Must::Succeed));
            }
            None if random.below(2) == 0 => makes(format!("cuMemHostAlloc >{to} {size} 0"), Kind::Host, Must::Succeed),
            None => {
                let line = format!("cuCtxCreate_v2 >{to} 0 0");
                let code = actor.act(&line, Some(Kind::Context), None);
                if code == 0 {
                    assert_eq!(actor.caller.call("cuCtxSetCurrent @9001"), 0);
                }
                return Some((line, code, Must::Take(4 * MIB)));
            }
        },
    }?;
    let code = actor.act(&line, made, gone);
    Some((line, code, must))
}

/// A graph that allocates and frees, built from nodes or by capture.
fn graph(actor: &mut Actor, random: &mut Random) -> Option<(String, i32, Must)> {
    let (to, size) = (actor.slot, random.size());
    let lines = if random.below(2) == 0 {
        vec![
            format!("cuGraphCreate >{to} 0"),
            format!("cuGraphAddMemAllocNode >9003 @{to} 0 0 [1,1,0,0,0,0,0,0,0,0,0,0,0,{size},0]>9004:14"),
            format!("cuGraphAddMemFreeNode >9005 @{to} 0 0 @9004"),
        ]
    } else {
        vec![
            "cuStreamCreate >9006 0".into(),
            "cuStreamBeginCapture_v2 @9006 0".into(),
            format!("cuMemAllocAsync >9004 {size} @9006"),
            "cuMemFreeAsync @9004 @9006".into(),
            format!("cuStreamEndCapture @9006 >{to}"),
            "cuStreamDestroy_v2 @9006".into(),
        ]
    };
    for line in &lines {
        assert_eq!(actor.caller.call(line), 0, "{line}");
    }
    actor.held.push((to, Kind::Graph));
    actor.slot += 1;
    Some((lines.join("; "), 0, Must::Succeed))
}
