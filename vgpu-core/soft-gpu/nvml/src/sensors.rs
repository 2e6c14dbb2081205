//! Sensors, clocks, links and modes: constants that are plausible for a data-centre GPU at rest.

use soft_gpu::c::Res;

use crate::codes::{INVALID_ARGUMENT, NOT_SUPPORTED, Out};
use crate::library::device;

const POWER_MILLIWATTS: u32 = 72_000;
const LIMIT_MILLIWATTS: u32 = 700_000;
const CELSIUS: u32 = 34;

/// MHz by clock: graphics, SM, memory, video. First those at rest, then the highest.
const CLOCKS: [u32; 4] = [345, 345, 2619, 765];
const MAX_CLOCKS: [u32; 4] = [1980, 1980, 2619, 1545];

pub(crate) fn constant<T: Copy>(gpu: u64, out: Out<T>, value: T) -> Res {
    device(gpu)?;
    out.set(value)
}

pub(crate) fn pair<T: Copy>(gpu: u64, one: Out<T>, other: Out<T>, value: (T, T)) -> Res {
    device(gpu)?;
    one.set(value.0)?;
    other.set(value.1)
}

fn clock(gpu: u64, kind: u32, out: Out<u32>, table: &[u32; 4]) -> Res {
    constant(gpu, out, *table.get(kind as usize).ok_or(INVALID_ARGUMENT)?)
}

soft_gpu::api! {
    fn nvmlDeviceGetTemperature(gpu: u64, sensor: u32, out: Out<u32>) {
        if sensor == 0 { constant(gpu, out, CELSIUS) } else { Err(INVALID_ARGUMENT) }
    }
    fn nvmlDeviceGetTemperatureV(gpu: u64, out: Out<[u32; 3]>) {
        let [version, sensor, _] = out.get()?;
        constant(gpu, out, [version, sensor, CELSIUS])
    }
    fn nvmlDeviceGetTemperatureThreshold(gpu: u64, kind: u32, out: Out<u32>) {
        match kind {
            0 => constant(gpu, out, 95), // shutdown
            1 => constant(gpu, out, 92), // slowdown
            2 => constant(gpu, out, 95), // memory
            3 => constant(gpu, out, 87), // GPU
            _ => Err(NOT_SUPPORTED),
        }
    }
    fn nvmlDeviceGetPowerUsage(gpu: u64, out: Out<u32>) { constant(gpu, out, POWER_MILLIWATTS) }
    fn nvmlDeviceGetPowerManagementMode(gpu: u64, out: Out<u32>) { constant(gpu, out, 1) }
    fn nvmlDeviceGetPowerManagementLimit(gpu: u64, out: Out<u32>) { constant(gpu, out, LIMIT_MILLIWATTS) }
    fn nvmlDeviceGetPowerManagementDefaultLimit(gpu: u64, out: Out<u32>) { constant(gpu, out, LIMIT_MILLIWATTS) }
    fn nvmlDeviceGetEnforcedPowerLimit(gpu: u64, out: Out<u32>) { constant(gpu, out, LIMIT_MILLIWATTS) }
    fn nvmlDeviceGetPowerManagementLimitConstraints(gpu: u64, least: Out<u32>, most: Out<u32>) {
        pair(gpu, least, most, (200_000, LIMIT_MILLIWATTS))
    }
    fn nvmlDeviceGetTotalEnergyConsumption(gpu: u64, out: Out<u64>) {
        constant(gpu, out, soft_gpu::state::now() / 1_000_000_000 * u64::from(POWER_MILLIWATTS))
    }
    fn nvmlDeviceGetPowerState(gpu: u64, out: Out<u32>) { constant(gpu, out, 0) }
    fn nvmlDeviceGetPerformanceState(gpu: u64, out: Out<u32>) { constant(gpu, out, 0) }
    fn nvmlDeviceGetPowerSource(gpu: u64, out: Out<u32>) { constant(gpu, out, 0) }

    fn nvmlDeviceGetClockInfo(gpu: u64, kind: u32, out: Out<u32>) { clock(gpu, kind, out, &CLOCKS) }
    fn nvmlDeviceGetMaxClockInfo(gpu: u64, kind: u32, out: Out<u32>) { clock(gpu, kind, out, &MAX_CLOCKS) }
    fn nvmlDeviceGetApplicationsClock(gpu: u64, kind: u32, out: Out<u32>) { clock(gpu, kind, out, &MAX_CLOCKS) }
    fn nvmlDeviceGetDefaultApplicationsClock(gpu: u64, kind: u32, out: Out<u32>) { clock(gpu, kind, out, &MAX_CLOCKS) }
    fn nvmlDeviceGetMaxCustomerBoostClock(gpu: u64, kind: u32, out: Out<u32>) { clock(gpu, kind, out, &MAX_CLOCKS) }
    fn nvmlDeviceGetClock(gpu: u64, kind: u32, which: u32, out: Out<u32>) {
        clock(gpu, kind, out, if which == 0 { &CLOCKS } else { &MAX_CLOCKS })
    }
    fn nvmlDeviceGetCurrentClocksThrottleReasons(gpu: u64, out: Out<u64>) { constant(gpu, out, 1) }
    fn nvmlDeviceGetCurrentClocksEventReasons(gpu: u64, out: Out<u64>) { constant(gpu, out, 1) }
    fn nvmlDeviceGetSupportedClocksThrottleReasons(gpu: u64, out: Out<u64>) { constant(gpu, out, 0x1ff) }
    fn nvmlDeviceGetSupportedClocksEventReasons(gpu: u64, out: Out<u64>) { constant(gpu, out, 0x1ff) }

    fn nvmlDeviceGetCurrPcieLinkGeneration(gpu: u64, out: Out<u32>) { constant(gpu, out, 5) }
    fn nvmlDeviceGetMaxPcieLinkGeneration(gpu: u64, out: Out<u32>) { constant(gpu, out, 5) }
    fn nvmlDeviceGetGpuMaxPcieLinkGeneration(gpu: u64, out: Out<u32>) { constant(gpu, out, 5) }
    fn nvmlDeviceGetCurrPcieLinkWidth(gpu: u64, out: Out<u32>) { constant(gpu, out, 16) }
    fn nvmlDeviceGetMaxPcieLinkWidth(gpu: u64, out: Out<u32>) { constant(gpu, out, 16) }
    fn nvmlDeviceGetPcieSpeed(gpu: u64, out: Out<u32>) { constant(gpu, out, 32_000) }
    fn nvmlDeviceGetPcieLinkMaxSpeed(gpu: u64, out: Out<u32>) { constant(gpu, out, 32_000) }
    fn nvmlDeviceGetPcieThroughput(gpu: u64, _counter: u32, out: Out<u32>) { constant(gpu, out, 0) }
    fn nvmlDeviceGetPcieReplayCounter(gpu: u64, out: Out<u32>) { constant(gpu, out, 0) }
    fn nvmlDeviceGetBusType(gpu: u64, out: Out<u32>) { constant(gpu, out, 2) }
    fn nvmlDeviceGetMemoryBusWidth(gpu: u64, out: Out<u32>) { constant(gpu, out, 5120) }

    fn nvmlDeviceGetComputeMode(gpu: u64, out: Out<u32>) { constant(gpu, out, 0) }
    fn nvmlDeviceGetPersistenceMode(gpu: u64, out: Out<u32>) { constant(gpu, out, 1) }
    fn nvmlDeviceGetDisplayMode(gpu: u64, out: Out<u32>) { constant(gpu, out, 0) }
    fn nvmlDeviceGetDisplayActive(gpu: u64, out: Out<u32>) { constant(gpu, out, 0) }
    fn nvmlDeviceGetAccountingMode(gpu: u64, out: Out<u32>) { constant(gpu, out, 0) }
    fn nvmlDeviceGetAccountingBufferSize(gpu: u64, out: Out<u32>) { constant(gpu, out, 4000) }
    fn nvmlDeviceGetNumFans(gpu: u64, out: Out<u32>) { constant(gpu, out, 0) }
    fn nvmlDeviceGetEncoderUtilization(gpu: u64, out: Out<u32>, period: Out<u32>) { pair(gpu, out, period, (0, 167_000)) }
    fn nvmlDeviceGetDecoderUtilization(gpu: u64, out: Out<u32>, period: Out<u32>) { pair(gpu, out, period, (0, 167_000)) }
    fn nvmlDeviceGetJpgUtilization(gpu: u64, out: Out<u32>, period: Out<u32>) { pair(gpu, out, period, (0, 167_000)) }
    fn nvmlDeviceGetOfaUtilization(gpu: u64, out: Out<u32>, period: Out<u32>) { pair(gpu, out, period, (0, 167_000)) }
    fn nvmlDeviceGetEncoderStats(gpu: u64, sessions: Out<u32>, rate: Out<u32>, latency: Out<u32>) {
        latency.set(0)?;
        pair(gpu, sessions, rate, (0, 0))
    }
    fn nvmlDeviceGetFBCStats(gpu: u64, out: Out<[u32; 3]>) { constant(gpu, out, [0; 3]) }
    fn nvmlDeviceGetEncoderSessions(gpu: u64, count: Out<u32>, _sessions: Out<u64>) { constant(gpu, count, 0) }
    fn nvmlDeviceGetFBCSessions(gpu: u64, count: Out<u32>, _sessions: Out<u64>) { constant(gpu, count, 0) }
}
