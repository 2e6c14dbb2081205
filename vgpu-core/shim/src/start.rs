//! Start-up: creates the state of this process at the first call of any function, and again in a fork child.
//!
//! How it fails: if there is no valid share, one line is written to stderr, and every call of this process is refused.

use crate::driver::{Gpu, Real};
use crate::process::{self, Ready};
use crate::time_share::TimeShare;
use crate::{drop_in, names, real};
use vgpu_abi::log::{LOG_VARIABLE, REPORT_VARIABLE};
use vgpu_core::account::Account;
use vgpu_core::grants;
use vgpu_core::hami::mirror::Mirror;
use vgpu_core::log;
use vgpu_core::memory::granule::granules;
use vgpu_core::os::stderr;

/// Returns the state of this process, or None if it is refused.
pub(crate) fn ready() -> Option<&'static Ready> {
    match process::made() {
        Some(state) => state,
        None => first(),
    }
}

#[cold]
fn first() -> Option<&'static Ready> {
    process::make(|| {
        open_log();
        match open() {
            Ok(ready) => {
                drop_in::show(&ready);
                Some(ready)
            }
            Err(reason) => {
                stderr::say(&reason);
                None
            }
        }
    })
}

/// Opens the files that VGPU_LOG and VGPU_REPORT name. If the log cannot be opened, this only writes a line to stderr.
fn open_log() {
    let settings = log::Settings {
        log: real::variable(LOG_VARIABLE),
        report: real::variable(REPORT_VARIABLE),
    };
    for refusal in log::open(&settings, names::TEXT) {
        stderr::say(&refusal);
    }
}

/// Writes the shares that were found to the log.
fn log_shares(grants: &[grants::GpuGrants]) {
    for gpu in grants {
        for share in &gpu.shares {
            let limits = &share.limits;
            log::info(format_args!(
                "share name={} gpu={} memory={} host-memory={} cores={} policy={:?} priority={:?} slot={:?} folder={:?}",
                limits.share,
                gpu.gpu,
                limits.memory,
                limits.host_memory,
                limits.cores,
                limits.compute_policy,
                limits.priority,
                limits.slot,
                share.directory
            ));
        }
    }
}

/// Opens the shares of this process and the driver's libraries.
fn open() -> Result<Ready, String> {
    let Found {
        grants,
        mirror,
        of_hami,
    } = shares()?;
    log_shares(&grants);
    let open = |grant: &grants::GpuGrants| -> Result<Gpu, String> {
        let account = Account::open(grant).map_err(|error| error.to_string())?;
        let account = if mirror.is_some() {
            drop_in::watched(account)
        } else {
            account
        };
        let reserve = grant
            .shares
            .iter()
            .filter_map(|share| share.limits.context_reserve)
            .max();
        let unowned = grant.shares.iter().map(|share| share.limits.context_unowned).max();
        let mut gpu = Gpu::new(Real, grant.gpu.clone(), account, reserve);
        gpu.unowned.each = granules(unowned.unwrap_or(0)).unwrap_or(0);
        Ok(gpu)
    };
    let gpus = grants.iter().map(open).collect::<Result<_, _>>()?;
    let times: Vec<_> = grants.iter().map(|gpu| TimeShare::of(gpu, of_hami)).collect();
    if !of_hami {
        // Opened now: later a program could prevent it by its limit of open files.
        for time in times.iter().flatten() {
            time.arbiter();
        }
    }
    Ok(Ready::new(gpus, times, mirror))
}

/// The shares of this process.
struct Found {
    grants: Vec<grants::GpuGrants>,
    mirror: Option<Mirror>,
    of_hami: bool,
}

/// Returns the shares of this process, and opens the driver's libraries. `vgpu_core::grants` explains where shares come
/// from.
fn shares() -> Result<Found, String> {
    let origin = match grants::directory(real::run_dir()) {
        Ok(origin) => origin,
        Err(nowhere) => {
            let (grants, mirror) = drop_in::shares()?.ok_or_else(|| nowhere.to_string())?;
            return Ok(Found {
                grants,
                mirror,
                of_hami: true,
            });
        }
    };
    let grants = grants::read(&origin).map_err(|error| error.to_string())?;
    let first = grants.first().and_then(|gpu| gpu.shares.first()).ok_or("no share")?;
    real::open(&first.limits.libcuda, &first.limits.libnvidia_ml)?;
    Ok(Found {
        grants,
        mirror: None,
        of_hami: false,
    })
}
