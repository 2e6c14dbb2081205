//! Devices: count, names, identities, attributes.

use crate::code::{INVALID_DEVICE, INVALID_VALUE, Res};
use crate::driver::{self, Driver};
use crate::ffi::{Out, Text};

/// Attributes that do not depend on the profile, by number: those that clients query of a recent data-centre GPU.
/// Attributes that are neither here nor in `special` read 0: not supported, or none.
const FIXED: &[(u32, i32)] = &[
    (1, 1024),
    (2, 1024),
    (3, 1024),
    (4, 64),
    (5, i32::MAX),
    (6, 65535),
    (7, 65535),
    (8, 49152),
    (9, 65536),
    (10, 32),
    (11, i32::MAX),
    (12, 65536),
    (13, 1_980_000),
    (14, 512),
    (15, 1),
    (19, 1),
    (21, 131_072),
    (22, 131_072),
    (23, 65536),
    (24, 16384),
    (25, 16384),
    (26, 16384),
    (27, 32768),
    (28, 32768),
    (29, 2048),
    (30, 512),
    (31, 1),
    (36, 2_619_000),
    (37, 5120),
    (38, 52_428_800),
    (39, 2048),
    (40, 3),
    (41, 1),
    (42, 32768),
    (43, 2048),
    (51, 32),
    (55, 32768),
    (56, 131_072),
    (57, 65536),
    (58, 16384),
    (59, 16384),
    (60, 16384),
    (69, 268_435_456),
    (70, 131_072),
    (71, 65000),
    (72, 2_097_120),
    (73, 32768),
    (74, 32768),
    (77, 32768),
    (78, 1),
    (79, 1),
    (80, 1),
    (81, 233_472),
    (82, 65536),
    (83, 1),
    (87, 2),
    (89, 1),
    (90, 1),
    (95, 1),
    (97, 232_448),
    (99, 1),
    (102, 1),
    (106, 32),
    (109, 134_213_632),
    (111, 1024),
    (115, 1),
    (120, 1),
    (129, 1),
    (134, -1),
    (141, 1),
];

fn special(driver: &Driver, gpu: usize, attribute: u32) -> Option<i32> {
    let (profile, pci) = (driver.state().profile(), driver.state().pci(gpu));
    Some(match attribute {
        16 => driver.state().sms_of(gpu) as i32,
        18 => i32::from(profile.is_unified(gpu)),
        33 => i32::from(pci.bus),
        34 => i32::from(pci.device),
        50 => pci.domain as i32,
        75 => profile.compute_capability.0 as i32,
        76 => profile.compute_capability.1 as i32,
        _ => return None,
    })
}

fn named(out: Out<i32>, gpu: Option<usize>) -> Res {
    let driver = driver::get()?;
    let ordinal = gpu.map(|gpu| driver.ordinal(gpu)).filter(|ordinal| *ordinal >= 0);
    out.set(ordinal.ok_or(INVALID_DEVICE)?)
}

soft_gpu::api! {
    fn cuDeviceGetCount(out: Out<i32>) {
        out.set(driver::get()?.gpus.len() as i32)
    }

    fn cuDeviceGet(out: Out<i32>, ordinal: i32) {
        driver::get()?.gpu(ordinal)?;
        out.set(ordinal)
    }

    fn cuDeviceGetName(name: Out<u8>, room: i32, device: i32) {
        let (driver, gpu) = driver::device(device)?;
        name.text(&driver.state().name_of(gpu), room)
    }

    fn cuDeviceGetUuid_v2(out: Out<[u8; 16]>, device: i32) {
        let driver = driver::get()?;
        out.set(driver.state().uuid(driver.gpu(device)?))
    }

    /// The UUID of an instance's GPU, where the second version has the instance's own.
    fn cuDeviceGetUuid(out: Out<[u8; 16]>, device: i32) {
        let driver = driver::get()?;
        let (state, gpu) = (driver.state(), driver.gpu(device)?);
        out.set(state.uuid(state.instance(gpu).map_or(gpu, |instance| instance.of.parent)))
    }

    fn cuDeviceTotalMem_v2(out: Out<u64>, device: i32) {
        let (driver, gpu) = driver::device(device)?;
        out.set(driver.state().memory_of(gpu))
    }

    fn cuDeviceTotalMem(out: Out<u32>, device: i32) {
        let (driver, gpu) = driver::device(device)?;
        out.set(u32::try_from(driver.state().memory_of(gpu)).unwrap_or(u32::MAX))
    }

    fn cuDeviceGetAttribute(out: Out<i32>, attribute: u32, device: i32) {
        let (driver, gpu) = driver::device(device)?;
        // The newest driver has about 160 attributes. A higher number is invalid, or from a future driver.
        if !(1..256).contains(&attribute) {
            return Err(INVALID_VALUE);
        }
        let fixed = || FIXED.iter().find(|(number, _)| *number == attribute).map(|(_, value)| *value);
        out.set(special(driver, gpu, attribute).or_else(fixed).unwrap_or(0))
    }

    fn cuDeviceComputeCapability(major: Out<i32>, minor: Out<i32>, device: i32) {
        let (driver, _) = driver::device(device)?;
        let (high, low) = driver.state().profile().compute_capability;
        major.set(high as i32)?;
        minor.set(low as i32)
    }

    fn cuDeviceGetProperties(out: Out<[i32; 14]>, device: i32) {
        driver::get()?.gpu(device)?;
        out.set([1024, 1024, 1024, 64, i32::MAX, 65535, 65535, 49152, 65536, 32, i32::MAX, 65536, 1_980_000, 512])
    }

    fn cuDeviceGetPCIBusId(text: Out<u8>, room: i32, device: i32) {
        let driver = driver::get()?;
        let pci = driver.state().pci(driver.gpu(device)?);
        text.text(&pci.to_string().to_uppercase(), room)
    }

    fn cuDeviceGetByPCIBusId(out: Out<i32>, text: Text) {
        let pci = soft_gpu::profile::parse_pci(&text.get()?).ok_or(INVALID_VALUE)?;
        named(out, driver::get()?.state().gpu_at(pci))
    }

    fn cuDeviceGetP2PAttribute(out: Out<i32>, attribute: u32, source: i32, target: i32) {
        let driver = driver::get()?;
        if driver.gpu(source)? == driver.gpu(target)? {
            return Err(INVALID_DEVICE);
        }
        // Rank 0; access and array access are supported, native atomics are not.
        match attribute {
            1 | 3 => out.set(0),
            2 | 4 => out.set(1),
            _ => Err(INVALID_VALUE),
        }
    }

    fn cuDeviceGetTexture1DLinearMaxWidth(out: Out<u64>, _format: u32, channels: u32, device: i32) {
        driver::get()?.gpu(device)?;
        out.set((1 << 28) / u64::from(channels.max(1)))
    }

    fn cuDeviceGetExecAffinitySupport(out: Out<i32>, _kind: u32, device: i32) {
        driver::get()?.gpu(device)?;
        out.set(0)
    }
}
