//! What the plugin lists of GPUs in MIG mode.

use crate::support::{Client, control, in_child, nvml, until};
use vgpu_kubelet_plugin::nvml::{GpuDriver as _, Memory};
use vgpu_kubelet_plugin::publish::inventory::{Gpus as _, List};
use vgpu_mig::MigDriver as _;
use vgpu_node::gpus::{Instance, Placement};

/// Profile, place, memory in MiB and multiprocessors of each instance.
fn instances(list: &List) -> Vec<(String, Option<Placement>, u64, u32)> {
    let instance = |gpu: &vgpu_node::gpus::Gpu| {
        let Instance {
            profile,
            placement,
            multiprocessors,
            ..
        } = gpu.mig.clone().expect("an instance");
        (profile, placement, gpu.memory >> 20, multiprocessors)
    };
    list.instances.iter().map(instance).collect()
}

#[test]
fn instances_are_listed_as_the_driver_describes_them() {
    let Some(state) = in_child("mig::instances_are_listed_as_the_driver_describes_them") else {
        return;
    };
    let profile = "mig = 1: 3g.40gb@4, 1g.10gb+me@0\n";
    std::fs::write(state.join("profile"), profile).expect("written");
    let nvml = nvml();
    let list = nvml.list().expect("GPUs");
    let at = |start, size| Some(Placement { start, size });
    let (half, eighth) = (
        ("3g.40gb".to_owned(), at(4, 4), 40_448, 60),
        ("1g.10gb+me".to_owned(), at(0, 1), 9_984, 16),
    );
    assert_eq!(instances(&list), [half, eighth.clone()]);
    let [whole] = &list.gpus[..] else {
        panic!("{:?}", list.gpus);
    };
    let (left_out, first) = (&list.left_out[0], &list.instances[0]);
    let mig = first.mig.as_ref().expect("an instance");
    assert_eq!(Some(&mig.parent), left_out.uuid.as_ref());
    assert_eq!((mig.gpu_instance, mig.compute_instance, mig.index), (2, 0, 0));
    assert!(first.uuid.starts_with("MIG-") && first.name == whole.name && first.minor == Some(1));
    let said = left_out.why.to_string();
    let expected = format!(
        "It has the instances 3g.40gb@4 ({}), 1g.10gb+me@0 ({})",
        first.uuid, list.instances[1].uuid
    );
    assert!(said.ends_with(&expected), "{said}");
    // An instance that was destroyed leaves a gap, and the other one is still listed.
    control(&state, "gone 1 2\n");
    assert_eq!(instances(&nvml.list().expect("GPUs")), [eighth]);
}

/// Its GPU's list, which has them for a privileged caller, is without them.
#[test]
fn processes_of_an_instance_are_sampled_there_and_not_on_its_gpu() {
    let Some(state) = in_child("mig::processes_of_an_instance_are_sampled_there_and_not_on_its_gpu") else {
        return;
    };
    std::fs::write(state.join("profile"), "mig = 1: 3g.40gb@4, 1g.10gb+me@0\n").expect("written");
    let nvml = nvml();
    let list = nvml.list().expect("GPUs");
    let [half, eighth] = [0, 1].map(|at| list.instances[at].uuid.clone());
    let parent = &list.instances[0].mig.as_ref().expect("an instance").parent;
    let client = Client::on(&half, &["init", &format!("alloc:{}", 1 << 30), "wait"]);
    let (none, one) = (Ok(Memory::new()), Ok(Memory::from([(client.pid(), Some(1 << 30))])));
    until("the client's memory", || {
        let sample = nvml.sample(false);
        let of = [&half, &eighth, parent].map(|uuid| sample.memory(uuid));
        of == [one.clone(), none.clone(), none.clone()]
    });
}

/// Memory and multiprocessors of the profile are those that devices are published with before their instance is made.
#[test]
fn the_child_makes_an_instance_which_is_what_its_profile_promised_and_destroys_it() {
    let test = "mig::the_child_makes_an_instance_which_is_what_its_profile_promised_and_destroys_it";
    let Some(state) = in_child(test) else { return };
    std::fs::write(state.join("profile"), "mig = 1:\n").expect("written");
    let nvml = nvml();
    let list = nvml.list().expect("GPUs");
    let [divided] = &list.divided[..] else {
        panic!("{:?}", list.divided);
    };
    assert!(list.instances.is_empty() && divided.minor == Some(1), "{list:?}");
    let gpu = divided.uuid.as_str();
    let mut profiles = nvml.profiles(gpu).expect("profiles").into_iter();
    let half = profiles.find(|profile| profile.name == "3g.40gb").expect("a half");
    let placement = Placement { start: 4, size: 4 };
    let id = nvml.create(gpu, half.id, placement).expect("made");
    let compute = nvml.create_compute(gpu, id).expect("made");
    let list = nvml.list().expect("GPUs");
    let expected = (half.name, Some(placement), half.memory_mib, half.multiprocessors);
    assert_eq!(instances(&list), [expected]);
    assert_eq!(Some(&list.instances[0].uuid), compute.uuid.as_ref());
    nvml.destroy_compute(gpu, id, compute.id).expect("destroyed");
    nvml.destroy(gpu, id).expect("destroyed");
    assert_eq!(nvml.list().expect("GPUs").instances, []);
}
