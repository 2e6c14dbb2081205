//! One alternative of a request, against what is free: the cause why it waits.

use vgpu_api::quantity::format_bytes;
use vgpu_api::request::{self, RequestError, Requested};
use vgpu_api::{DRIVER_NAME, class, device_type};

use crate::model::{Amount, Ask, Taint};
use crate::supply::{Amounts, Gpu, IncompletePool, Supply};

/// Why an ask is not met, or where it would be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Cause<'a> {
    NothingPublished,
    Incomplete(&'a IncompletePool),
    NoSuchDevice {
        device_type: &'a str,
    },
    MonitorWithoutAdmin,
    Tainted {
        gpu: &'a Gpu,
        taint: &'a Taint,
    },
    TooLarge {
        largest: &'a Gpu,
    },
    TooFew {
        node: &'a str,
        with_room: usize,
        needed: usize,
    },
    NoShares {
        gpu: &'a Gpu,
    },
    NoRoom {
        memory: &'a Gpu,
        cores: Option<&'a Gpu>,
        largest: &'a Gpu,
    },
    Fits {
        gpu: &'a Gpu,
    },
}

/// An ask whose capacity requests make sense.
#[derive(Debug, Clone)]
pub(crate) struct Demand<'a> {
    pub(crate) ask: &'a Ask,
    pub(crate) requested: Requested,
    /// The attribute `type` that its class selects.
    pub(crate) device_type: &'a str,
}

impl<'a> Demand<'a> {
    pub(crate) fn new(ask: &'a Ask, device_type: &'a str) -> Result<Self, RequestError> {
        let capacity = ask.capacity.iter().map(|(key, value)| (key.as_str(), value.as_str()));
        Ok(Self {
            ask,
            requested: request::check(&ask.at, &ask.class, capacity)?,
            device_type,
        })
    }

    /// What one device gives for this ask: what it names, else the device's default.
    pub(crate) fn need(&self, gpu: &Gpu) -> Amounts {
        if self.ask.admin {
            return Amounts::default();
        }
        Amounts {
            // At most 10Ti, by request::check.
            memory: self.requested.memory.map_or(gpu.default.memory, |bytes| bytes as i64),
            cores: self.requested.cores.map_or(gpu.default.cores, i64::from),
            shares: gpu.default.shares,
        }
    }

    fn has_room(&self, gpu: &Gpu) -> bool {
        self.ask.admin || gpu.has_room(&self.need(gpu))
    }

    fn candidates<'s>(&self, supply: &'s Supply) -> Vec<&'s Gpu> {
        supply
            .gpus
            .iter()
            .filter(|gpu| gpu.device_type == self.device_type)
            .collect()
    }

    /// Why it waits. All devices of an ask come from one node.
    pub(crate) fn judge<'s>(&'s self, supply: &'s Supply) -> Cause<'s> {
        if self.device_type == device_type::MONITOR && !self.ask.admin {
            return Cause::MonitorWithoutAdmin;
        }
        let all = self.candidates(supply);
        let Some(first) = all.first() else {
            return match supply.incomplete.first() {
                Some(pool) => Cause::Incomplete(pool),
                None if supply.gpus.is_empty() => Cause::NothingPublished,
                None => Cause::NoSuchDevice {
                    device_type: self.device_type,
                },
            };
        };
        let open: Vec<&Gpu> = all
            .iter()
            .copied()
            .filter(|gpu| gpu.repels(&self.ask.tolerations).is_none())
            .collect();
        let Some(largest) = most(&open, |gpu| (gpu.total.memory, gpu.total.cores)) else {
            return match first.repels(&self.ask.tolerations) {
                Some(taint) => Cause::Tainted { gpu: first, taint },
                None => Cause::NothingPublished,
            };
        };
        let large_enough: Vec<&Gpu> = open
            .iter()
            .copied()
            .filter(|gpu| gpu.total.covers(&self.need(gpu)))
            .collect();
        if large_enough.is_empty() {
            return Cause::TooLarge { largest };
        }
        if let Some(gpu) = self.fits(&open) {
            return Cause::Fits { gpu };
        }
        if self.ask.amount != Amount::Exactly(1) {
            let (node, with_room, needed) = self.best_node(&open);
            return Cause::TooFew {
                node,
                with_room,
                needed,
            };
        }
        let but_for_shares = |gpu: &&&Gpu| {
            let need = Amounts {
                shares: 0,
                ..self.need(gpu)
            };
            gpu.has_room(&need)
        };
        if let Some(gpu) = large_enough.iter().find(but_for_shares) {
            return Cause::NoShares { gpu };
        }
        // One of `open` exists, so there is a most.
        let memory = most(&open, |gpu| (gpu.free.memory, gpu.free.cores)).unwrap_or(largest);
        let cores = most(&open, |gpu| (gpu.free.cores, gpu.free.memory))
            .filter(|gpu| self.requested.cores.unwrap_or(0) > 0 && gpu.free.cores > memory.free.cores);
        Cause::NoRoom { memory, cores, largest }
    }

    /// The first device of a node that can meet the whole ask.
    fn fits<'s>(&self, open: &[&'s Gpu]) -> Option<&'s Gpu> {
        let by_node = nodes(open);
        by_node
            .iter()
            .find_map(|gpus| self.choose(gpus).and_then(|chosen| chosen.first().map(|i| gpus[*i])))
    }

    /// Which of one node's devices meet the ask, as positions.
    pub(crate) fn choose(&self, gpus: &[&Gpu]) -> Option<Vec<usize>> {
        let needed = self.ask.amount.of(gpus.len());
        let free = (0..gpus.len()).filter(|i| self.usable(gpus[*i]));
        let chosen: Vec<usize> = free.take(needed).collect();
        (chosen.len() == needed).then_some(chosen)
    }

    fn usable(&self, gpu: &Gpu) -> bool {
        gpu.device_type == self.device_type && gpu.repels(&self.ask.tolerations).is_none() && self.has_room(gpu)
    }

    fn best_node<'s>(&self, open: &[&'s Gpu]) -> (&'s str, usize, usize) {
        nodes(open)
            .iter()
            .map(|gpus| {
                let with_room = gpus.iter().filter(|gpu| self.usable(gpu)).count();
                (gpus[0].node.as_str(), with_room, self.ask.amount.of(gpus.len()))
            })
            .max_by_key(|(_, with_room, _)| *with_room)
            .unwrap_or(("", 0, self.ask.amount.of(0)))
    }
}

/// Devices by their node, in the order in which nodes first occur.
fn nodes<'s>(gpus: &[&'s Gpu]) -> Vec<Vec<&'s Gpu>> {
    let mut by_node: Vec<Vec<&Gpu>> = Vec::new();
    let mut index = std::collections::HashMap::new();
    for gpu in gpus {
        let i = *index.entry(&gpu.node).or_insert_with(|| {
            by_node.push(Vec::new());
            by_node.len() - 1
        });
        by_node[i].push(gpu);
    }
    by_node
}

/// The first of the greatest.
fn most<'s>(gpus: &[&'s Gpu], by: impl Fn(&Gpu) -> (i64, i64)) -> Option<&'s Gpu> {
    gpus.iter()
        .copied()
        .reduce(|best, gpu| if by(gpu) > by(best) { gpu } else { best })
}

/// Bytes for people: nothing is `0Mi`, so that it is seen to be memory.
fn memory(bytes: i64) -> String {
    match u64::try_from(bytes) {
        Ok(bytes) if bytes > 0 => format_bytes(bytes),
        _ => "0Mi".to_owned(),
    }
}

impl std::fmt::Display for Demand<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.ask.amount {
            Amount::Exactly(1) => {}
            Amount::Exactly(count) => write!(f, "{count} times ")?,
            Amount::All => f.write_str("every GPU of a node, each with ")?,
        }
        if self.ask.admin || self.device_type == device_type::MONITOR {
            return f.write_str("administrative access to a GPU");
        }
        if self.device_type == device_type::SLOT {
            return f.write_str("a slot of a GPU");
        }
        if self.ask.class == class::GPU {
            return f.write_str("a whole GPU");
        }
        match self.requested.memory {
            // At most 10Ti, by request::check.
            Some(bytes) => write!(f, "memory {}", memory(bytes as i64))?,
            None => f.write_str("all memory of a GPU")?,
        }
        write!(f, ", cores {}", self.requested.cores.unwrap_or(0))
    }
}

impl std::fmt::Display for Gpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let place = if self.node.is_empty() { &self.pool } else { &self.node };
        write!(f, "{place} {}", self.name)
    }
}

impl std::fmt::Display for Cause<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let size = |gpu: &Gpu| format!("largest GPU: {}, {} cores", memory(gpu.total.memory), gpu.total.cores);
        let free = |gpu: &Gpu| format!("memory {}, cores {} on {gpu}", memory(gpu.free.memory), gpu.free.cores);
        match self {
            Self::NothingPublished => write!(
                f,
                "no node publishes a GPU for driver {DRIVER_NAME}; see that vgpu-kubelet-plugin runs on the GPU nodes"
            ),
            Self::Incomplete(pool) => write!(
                f,
                "pool {} is not wholly published, {} of {} slices; see vgpu-kubelet-plugin's log on its node",
                pool.pool, pool.slices, pool.expected
            ),
            Self::NoSuchDevice { device_type } => {
                write!(
                    f,
                    "no device of type {device_type} is published by driver {DRIVER_NAME}"
                )
            }
            Self::MonitorWithoutAdmin => f.write_str(
                "class vgpu-monitor gives administrative access alone; set adminAccess: true in the request, in a \
                 namespace with the label resource.kubernetes.io/admin-access: \"true\"",
            ),
            Self::Tainted { gpu, taint } => write!(
                f,
                "every GPU has a taint that the request does not tolerate, for example {}={}:{} on {gpu}",
                taint.key, taint.value, taint.effect
            ),
            Self::TooLarge { largest } => write!(f, "no GPU is that large ({}); ask for less", size(largest)),
            Self::TooFew {
                node,
                with_room,
                needed,
            } => {
                write!(
                    f,
                    "{needed} GPUs of one node are needed, and {with_room} on node {node} have room"
                )
            }
            Self::NoShares { gpu } => write!(
                f,
                "memory and cores would fit, but all {} shares of {gpu} are taken; a claim needs one",
                gpu.total.shares
            ),
            Self::NoRoom { memory, cores, largest } if memory.shared => {
                write!(f, "the largest free share is {}", free(memory))?;
                if let Some(cores) = cores {
                    write!(f, ", the most free cores are {}", free(cores))?;
                }
                write!(f, " ({})", size(largest))
            }
            Self::NoRoom { memory, .. } => write!(f, "every such device is taken, for example {memory}"),
            Self::Fits { gpu } => {
                write!(
                    f,
                    "{gpu} has room, so it is not GPUs that the pod waits for; see the scheduler's own event"
                )
            }
        }
    }
}
