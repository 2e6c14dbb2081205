//! Implements `vgpu slices`: the ResourceSlices that a new node will publish, as templates for an autoscaler.
//!
//! ```text
//! --like NODE: the node's slices, of a cluster or of files ─┐
//!                                                           ├─► without what one machine has alone ─► a List on stdout
//! --gpu PRODUCT:COUNT: a table of products ─────────────────┘
//! ```
//!
//! An autoscaler that is promised more than a node has makes one node after the other for a pod that none of them can run, so
//! a node's own slices are better than the table.

use std::collections::BTreeMap;
use std::process::ExitCode;

use serde_json::{Value, json};
use vgpu_api::slice::{self, MAX_DEVICES};
use vgpu_api::{DRIVER_NAME, INSTANCE_PREFIX, MONITOR_SUFFIX, Pools, device_type};

use super::documents::Documents;
use super::{OfflineError, print, say, status, yaml};
use crate::cluster::{self, Cluster, List};
use crate::exit;
use crate::flags::{GpuTemplate, ListFormat, SlicesFlags};

/// Stands for the UUID of a GPU that does not exist yet.
const NO_UUID: &str = "template";

#[derive(Debug, thiserror::Error)]
enum SlicesError {
    #[error(transparent)]
    Offline(#[from] OfflineError),
    #[error("--like {node}: no ResourceSlice of {DRIVER_NAME} is of this node; {others}")]
    NoSlices { node: String, others: String },
    #[error("--like {node}: pool {pool} has {found} of its {promised} slices; try again in a minute")]
    Incomplete {
        node: String,
        pool: String,
        found: usize,
        promised: u64,
    },
    #[error("--gpu {given}: not a product of the table, which has {known}; take --like and a node that has this GPU")]
    Product { given: String, known: String },
}

/// A product, by the names and sizes that NVML gives it.
struct Product {
    id: &'static str,
    name: &'static str,
    architecture: &'static str,
    compute_capability: &'static str,
    /// MiB: nvidia-smi's total, with ECC on. The driver reserves part of it, so a template has 1/32 less.
    memory: u64,
}

const fn product(
    id: &'static str,
    name: &'static str,
    architecture: &'static str,
    compute_capability: &'static str,
    memory: u64,
) -> Product {
    Product {
        id,
        name,
        architecture,
        compute_capability,
        memory,
    }
}

/// From outputs of nvidia-smi that were published; none was seen by this project.
const PRODUCTS: [Product; 14] = [
    product("T4", "Tesla T4", "Turing", "7.5.0", 15_360),
    product("A10", "NVIDIA A10", "Ampere", "8.6.0", 23_028),
    product("A10G", "NVIDIA A10G", "Ampere", "8.6.0", 23_028),
    product("A30", "NVIDIA A30", "Ampere", "8.0.0", 24_576),
    product("A100-40GB", "NVIDIA A100-SXM4-40GB", "Ampere", "8.0.0", 40_960),
    product("A100-80GB", "NVIDIA A100-SXM4-80GB", "Ampere", "8.0.0", 81_920),
    product("A100-80GB-PCIe", "NVIDIA A100 80GB PCIe", "Ampere", "8.0.0", 81_920),
    product("L4", "NVIDIA L4", "Ada", "8.9.0", 23_034),
    product("L40S", "NVIDIA L40S", "Ada", "8.9.0", 46_068),
    product("H100-80GB", "NVIDIA H100 80GB HBM3", "Hopper", "9.0.0", 81_559),
    product("H100-80GB-PCIe", "NVIDIA H100 PCIe", "Hopper", "9.0.0", 81_559),
    product("H100-NVL", "NVIDIA H100 NVL", "Hopper", "9.0.0", 95_830),
    product("H200", "NVIDIA H200", "Hopper", "9.0.0", 143_771),
    product("B200", "NVIDIA B200", "Blackwell", "10.0.0", 183_359),
];

pub(crate) fn main(flags: &SlicesFlags) -> ExitCode {
    match run(flags) {
        Ok(failed) => status(&failed, true),
        Err(error) => {
            say("slices", error);
            ExitCode::from(exit::USAGE)
        }
    }
}

/// Returns a sentence for each document that cannot be read.
fn run(flags: &SlicesFlags) -> Result<Vec<String>, SlicesError> {
    let (pools, failed) = match &flags.like {
        Some(node) => {
            let (slices, failed) = read(flags)?;
            failed.iter().for_each(|line| say("slices", line));
            (like(node, &slices, &flags.name)?, failed)
        }
        None => (made(flags)?, Vec::new()),
    };
    let list = json!({"apiVersion": "v1", "kind": "List", "items": documents(pools, &flags.name)});
    print(&match flags.output {
        ListFormat::Json => format!("{list:#}\n"),
        ListFormat::Yaml => yaml(&list)?,
    })?;
    Ok(failed)
}

/// The ResourceSlices of the files, or of the cluster, and a sentence for each document that cannot be read.
fn read(flags: &SlicesFlags) -> Result<(Vec<Value>, Vec<String>), OfflineError> {
    let documents = match flags.files.as_slice() {
        [] => {
            let cluster = Cluster::connect(&flags.cluster, None)?;
            let [slices] = cluster.read([List::everywhere(cluster::SLICES)]);
            let mut documents = Documents::default();
            documents.add_list(slices?);
            documents
        }
        files => Documents::read(files)?,
    };
    let values = documents.objects.into_iter().map(|object| object.value);
    let slices = values.filter(|value| value["kind"] == "ResourceSlice").collect();
    Ok((slices, documents.failed))
}

/// The devices of each pool, by the pool's name.
type Devices = BTreeMap<String, Vec<Value>>;

/// Returns the devices of a node, without what one machine has alone.
fn like(node: &str, slices: &[Value], name: &str) -> Result<Devices, SlicesError> {
    let ours = || slices.iter().filter(|slice| slice["spec"]["driver"] == DRIVER_NAME);
    let pool = |slice: &Value| slice["spec"]["pool"]["name"].as_str().unwrap_or_default().to_owned();
    let generation = |slice: &Value| slice["spec"]["pool"]["generation"].as_i64().unwrap_or_default();
    let mut newest: BTreeMap<String, Vec<&Value>> = BTreeMap::new();
    for slice in ours().filter(|slice| slice["spec"]["nodeName"] == node) {
        let known = newest.entry(pool(slice)).or_default();
        match known.first().map(|first| generation(first).cmp(&generation(slice))) {
            Some(std::cmp::Ordering::Greater) => {}
            Some(std::cmp::Ordering::Less) => *known = vec![slice],
            _ => known.push(slice),
        }
    }
    if newest.is_empty() {
        let mut names: Vec<&str> = ours().filter_map(|slice| slice["spec"]["nodeName"].as_str()).collect();
        names.sort_unstable();
        names.dedup();
        let others = match names.as_slice() {
            [] => "no other node has one either; without a node that has such GPUs, take --gpu".to_owned(),
            names => format!("these nodes have some: {}", names.join(", ")),
        };
        let node = node.to_owned();
        return Err(SlicesError::NoSlices { node, others });
    }
    let mut numbers = Numbers::default();
    let mut devices = Devices::new();
    let mut could_be_made = 0;
    let here = Pools::of(name);
    for (pool, mut slices) in newest {
        let promised = slices[0]["spec"]["pool"]["resourceSliceCount"].as_u64().unwrap_or(1);
        if slices.len() as u64 != promised {
            let (node, found) = (node.to_owned(), slices.len());
            return Err(SlicesError::Incomplete {
                node,
                pool,
                found,
                promised,
            });
        }
        slices.sort_by_key(|slice| slice["metadata"]["name"].as_str().unwrap_or_default().to_owned());
        let all = slices.iter().flat_map(|slice| slice["spec"]["devices"].as_array());
        // A GPU in MIG mode stays for a while beside its instances.
        let is_divided = |device: &&Value| {
            let mut taints = device["taints"].as_array().into_iter().flatten();
            taints.any(|taint| taint["key"] == "dra.vgpu/mig")
        };
        for device in all.flatten().filter(|device| !is_divided(device)) {
            // Only with the counters of their GPU, which are of one machine, do these exclude each other.
            if device["consumesCounters"].is_array() && device["attributes"]["type"]["string"] == device_type::MIG {
                could_be_made += 1;
                continue;
            }
            let device = template(device.clone(), &mut numbers);
            let pool = here.of_device(device["name"].as_str().unwrap_or_default());
            devices.entry(pool).or_default().push(device);
        }
    }
    if could_be_made > 0 {
        let line = format!(
            "left out: {could_be_made} instances that claims could make; a GPU whose MIG mode they switch is there whole"
        );
        say("slices", line);
    }
    Ok(devices)
}

/// Numbers in place of names that only one machine has.
#[derive(Default)]
struct Numbers {
    gpus: BTreeMap<String, usize>,
    cliques: BTreeMap<String, usize>,
}

/// The number of a name: that of its first occurrence.
fn number(known: &mut BTreeMap<String, usize>, name: String) -> usize {
    let next = known.len();
    *known.entry(name).or_insert(next)
}

/// Removes what is of one machine: names and UUIDs of its GPUs, their faults, and who allocates them. An autoscaler either
/// ignores taints or makes no node because of one.
fn template(mut device: Value, numbers: &mut Numbers) -> Value {
    let name = device["name"].as_str().unwrap_or_default();
    let gpu = name.strip_suffix(MONITOR_SUFFIX).unwrap_or(name).to_owned();
    let suffix = name.strip_prefix(&gpu).unwrap_or_default().to_owned();
    let prefix = match name.starts_with(INSTANCE_PREFIX) {
        true => INSTANCE_PREFIX,
        false => "gpu-",
    };
    device["name"] = format!("{prefix}{}{suffix}", number(&mut numbers.gpus, gpu)).into();
    if let Some(clique) = device.pointer_mut("/attributes/nvlinkClique") {
        let of_machine = clique["string"].as_str().unwrap_or_default().to_owned();
        *clique = json!({"string": format!("clique-{}", number(&mut numbers.cliques, of_machine))});
    }
    for uuid in ["/attributes/uuid", "/attributes/parentUUID"] {
        if let Some(uuid) = device.pointer_mut(uuid) {
            *uuid = json!({"string": NO_UUID});
        }
    }
    if let Some(fields) = device.as_object_mut() {
        fields.remove("taints");
        fields.remove("consumesCounters");
    }
    device
}

/// Returns the devices of a node with these GPUs.
fn made(flags: &SlicesFlags) -> Result<Devices, SlicesError> {
    let mut devices = Devices::new();
    let mut index: u32 = 0;
    let pools = Pools::of(&flags.name);
    for GpuTemplate { product, count } in &flags.gpus {
        let known = PRODUCTS.iter().find(|known| known.id.eq_ignore_ascii_case(product));
        let known = known.ok_or_else(|| SlicesError::Product {
            given: product.clone(),
            known: PRODUCTS.map(|known| known.id).join(", "),
        })?;
        for _ in 0..*count {
            let shared = json!({
                "name": format!("gpu-{index}"),
                "allowMultipleAllocations": true,
                "attributes": attributes(device_type::GPU, known, index, flags),
                "capacity": slice::capacity((known.memory - known.memory / 32) << 20, flags.shares),
            });
            let monitor = json!({
                "name": format!("gpu-{index}{MONITOR_SUFFIX}"),
                "attributes": attributes(device_type::MONITOR, known, index, flags),
            });
            for device in [shared, monitor] {
                let pool = pools.of_device(device["name"].as_str().unwrap_or_default());
                devices.entry(pool).or_default().push(device);
            }
            index += 1;
        }
    }
    let mut left_out = vec!["nvlinkClique", "numaNode", "pcieRoot", "pciBusID"];
    left_out.extend(flags.driver.is_none().then_some("driverVersion (add --driver)"));
    left_out.extend(flags.cuda.is_none().then_some("cudaDriverVersion (add --cuda)"));
    let left_out = left_out.join(", ");
    let line = format!("left out: {left_out}; for a claim that selects or matches by one, copy a node by --like");
    say("slices", line);
    Ok(devices)
}

fn attributes(kind: &str, product: &Product, index: u32, flags: &SlicesFlags) -> Value {
    let mut known = json!({
        "type": {"string": kind},
        "uuid": {"string": NO_UUID},
        "parentUUID": {"string": NO_UUID},
        "profile": {"string": "none"},
        "placement": {"string": "none"},
        "index": {"int": index},
        "productName": {"string": product.name},
        "brand": {"string": "Nvidia"},
        "architecture": {"string": product.architecture},
        "cudaComputeCapability": {"version": product.compute_capability},
        "memorySource": {"string": "nvml"},
        "driverLimit": {"string": "none"},
    });
    for (name, version) in [("driverVersion", &flags.driver), ("cudaDriverVersion", &flags.cuda)] {
        if let Some(version) = version {
            known[name] = json!({"version": version});
        }
    }
    known
}

/// Returns the pools as ResourceSlices of node `name`.
fn documents(pools: Devices, name: &str) -> Vec<Value> {
    let mut documents = Vec::new();
    for (pool, devices) in pools {
        let chunks: Vec<&[Value]> = devices.chunks(MAX_DEVICES).collect();
        for (at, chunk) in chunks.iter().enumerate() {
            documents.push(json!({
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceSlice",
                "metadata": {"name": format!("{}-{at}", pool.replace('/', "-"))},
                "spec": {
                    "driver": DRIVER_NAME,
                    "nodeName": name,
                    "pool": {"name": pool, "generation": 1, "resourceSliceCount": chunks.len()},
                    "devices": chunk,
                },
            }));
        }
    }
    documents
}
