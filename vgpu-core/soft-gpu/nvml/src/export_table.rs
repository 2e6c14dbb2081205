//! nvmlInternalGetExportTable, as far as nvidia-smi uses it: three process lists. Every other slot returns
//! NOT_SUPPORTED. The slots and the layout of an entry are published in NVIDIA's k8s-test-infra.

use std::sync::OnceLock;

use soft_gpu::c::Res;

use crate::codes::{INSUFFICIENT_SIZE, In, NOT_SUPPORTED, Out};
use crate::library::{device, state};
use crate::usage::{Listed, listed};

/// One process as nvidia-smi reads it: 4128 bytes, 4096 of them for the name.
#[derive(Clone, Copy)]
#[repr(C)]
struct Entry {
    pid: u32,
    memory: u64,
    gpu_instance: u32,
    compute_instance: u32,
    padding: u64,
    name: [u8; 4096],
}

const _: () = assert!(size_of::<Entry>() == 4128 && std::mem::offset_of!(Entry, name) == 32);

type Slot = extern "C" fn(u64, Out<u32>, Out<Entry>) -> i32;

/// The first word is the table's size in bytes.
#[repr(C)]
struct Table {
    size: u64,
    slots: [Slot; SLOTS],
}

const SLOTS: usize = 400;
const COMPUTE: usize = 213;
const GRAPHICS: usize = 214;
const MPS: usize = 215;

extern "C" fn unsupported(_gpu: u64, _count: Out<u32>, _out: Out<Entry>) -> i32 {
    NOT_SUPPORTED.0
}

extern "C" fn compute(gpu: u64, count: Out<u32>, out: Out<Entry>) -> i32 {
    crate::call::call("nvmlDeviceGetComputeRunningProcesses_v3", || processes(gpu, count, out))
}

extern "C" fn nobody(gpu: u64, count: Out<u32>, _out: Out<Entry>) -> i32 {
    crate::call::call("nvmlDeviceGetGraphicsRunningProcesses_v3", || {
        device(gpu)?;
        count.set(0)
    })
}

fn name(pid: u32) -> [u8; 4096] {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let first = line.split(|byte| *byte == 0).next().unwrap_or_default();
    let mut name = [0; 4096];
    let length = first.len().min(name.len() - 1);
    name[..length].copy_from_slice(&first[..length]);
    name
}

fn processes(gpu: u64, count: Out<u32>, out: Out<Entry>) -> Res {
    let entry = |(pid, user, [gpu_instance, compute_instance]): Listed<'_>| Entry {
        pid,
        memory: user.listed,
        gpu_instance,
        compute_instance,
        padding: 0,
        name: name(pid),
    };
    let entries: Vec<Entry> = listed(gpu, entry)?;
    let room = count.get()? as usize;
    count.set(entries.len() as u32)?;
    if entries.len() > room {
        Err(INSUFFICIENT_SIZE)
    } else {
        out.fill(&entries)
    }
}

soft_gpu::api! {
    fn nvmlInternalGetExportTable(out: Out<u64>, _id: In<[u8; 16]>) {
        static TABLE: OnceLock<Table> = OnceLock::new();
        state()?;
        let table = TABLE.get_or_init(|| {
            let mut slots = [unsupported as Slot; SLOTS];
            // The size is word 0, so slot n is at index n - 1.
            slots[COMPUTE - 1] = compute;
            slots[GRAPHICS - 1] = nobody;
            slots[MPS - 1] = nobody;
            Table { size: size_of::<Table>() as u64, slots }
        });
        let Table { size: _, slots: _ } = table;
        out.set(std::ptr::from_ref(table) as u64)
    }
}
