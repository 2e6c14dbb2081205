//! Implements `vgpu run`, from flags to exit status; connects all other modules.
#![forbid(unsafe_code)]

use crate::artefacts::{ArtefactError, Artefacts};
use crate::driver::{Driver, DriverError, Loader};
use crate::environment::{Environment, SoftGpu};
use crate::exit;
use crate::flags::RunFlags;
use crate::gpus::{self, GpuError, Listed};
use crate::launch::{self, Places};
use crate::namespace::{self, HostFolder, Namespace, NamespaceError};
use crate::plan::{self, Decision, PlanError};
use crate::report::{Report, ReportError};
use crate::request::{FlagError, Request};
use crate::run_dir::{RunDir, RunDirError};
use crate::share::{self, Held, Links, ShareError, ShareFolder};
use crate::supervise::{self, StartError};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use vgpu_abi::log::REPORT_VARIABLE;
use vgpu_abi::paths::{CONTAINER_DIR, LIMITS, NAMESPACE_DIR, PRELOAD_FILE, RUN_DIR_VARIABLE};

#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error(transparent)]
    Flag(#[from] FlagError),
    #[error(transparent)]
    Artefact(#[from] ArtefactError),
    #[error(transparent)]
    Driver(#[from] DriverError),
    #[error(transparent)]
    Gpu(#[from] GpuError),
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error("{plan}; {}", left_out.join("; "))]
    LeftOut { plan: PlanError, left_out: Vec<String> },
    #[error(transparent)]
    RunDir(#[from] RunDirError),
    #[error(transparent)]
    Share(#[from] ShareError),
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
    #[error(transparent)]
    Report(#[from] ReportError),
    #[error(transparent)]
    Start(#[from] StartError),
    #[error("cannot find this program's own file: {0}")]
    OwnFile(#[source] std::io::Error),
    #[error("{RUN_DIR_VARIABLE}={}: already inside another `vgpu run`, whose limits apply", .0.display())]
    Nested(PathBuf),
    #[error("{}: already inside a container with a share, whose limits apply", .0.display())]
    InContainer(PathBuf),
    #[error("{variable}={}: share {share:?} has {}; unset the variable, or use another --share", wanted.display(), or_none(.has))]
    OtherSoftGpu {
        variable: &'static str,
        wanted: PathBuf,
        share: String,
        has: Option<PathBuf>,
    },
}

fn or_none(path: &Option<PathBuf>) -> String {
    path.as_ref()
        .map_or_else(|| "none".to_owned(), |path| path.display().to_string())
}

/// If the wanted GPU does not exist, adds to the error the GPUs that cannot be used.
fn named(plan: PlanError, asked: Option<&(Driver, Listed)>) -> RunError {
    let left_out = asked.map_or_else(Vec::new, |(_, listed)| listed.left_out.clone());
    match plan {
        PlanError::NoGpu { .. } if !left_out.is_empty() => RunError::LeftOut { plan, left_out },
        plan => plan.into(),
    }
}

/// Runs COMMAND; on an error prints one line and returns its exit status.
#[must_use]
pub fn main(flags: RunFlags) -> ExitCode {
    match run(flags) {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            // A caller without stderr still gets the status.
            let _ = writeln!(std::io::stderr(), "vgpu run: {error}");
            ExitCode::from(match error {
                RunError::Start(StartError::NotFound { .. }) => exit::NOT_FOUND,
                RunError::Start(StartError::NotExecutable { .. }) => exit::NOT_EXECUTABLE,
                _ => exit::USAGE,
            })
        }
    }
}

fn run(flags: RunFlags) -> Result<u8, RunError> {
    let request = Request::from_flags(flags)?;
    let environment = Environment::read();
    refuse_nested(&environment)?;
    let exe = std::env::current_exe().map_err(RunError::OwnFile)?;
    let artefacts = Artefacts::find(&exe)?;
    let in_namespace = environment.uid == 0 && namespace::possible();
    let run_dir = RunDir::open(&environment, in_namespace)?;
    let host_folder = in_namespace.then(|| HostFolder::new(&run_dir));
    let entry = Entry {
        request: &request,
        environment: &environment,
        artefacts: &artefacts,
        run_dir: &run_dir,
        host_folder: host_folder.as_ref(),
    };
    let held = entry.enter()?;
    if request.verbose {
        let driver = driver_of(&held.folder)?;
        let (gpu, libcuda, nvml) = (
            &held.limits.gpu,
            driver.libcuda.display(),
            driver.libnvidia_ml.display(),
        );
        // A caller without stderr still gets the share.
        let _ = writeln!(std::io::stderr(), "vgpu run: GPU {gpu}, driver {libcuda} and {nvml}");
    }
    let status = start(&request, &environment, &artefacts, in_namespace, &held);
    held.release(|| {
        if let Some(folder) = &host_folder {
            folder.remove();
        }
    });
    status
}

/// Refuses to run inside another `vgpu run` or a container with a share: an inner share would not count
/// toward the outer limit.
fn refuse_nested(environment: &Environment) -> Result<(), RunError> {
    if let Some(outer) = &environment.outer_run {
        return Err(RunError::Nested(outer.clone()));
    }
    let folders = [CONTAINER_DIR, NAMESPACE_DIR].into_iter();
    let entries = folders.flat_map(|folder| std::fs::read_dir(folder).into_iter().flatten().flatten());
    let mut shares = entries
        .map(|entry| entry.path().join(LIMITS))
        .filter(|limits| limits.exists());
    shares
        .next()
        .map_or(Ok(()), |limits| Err(RunError::InContainer(limits)))
}

fn start(
    request: &Request,
    environment: &Environment,
    artefacts: &Artefacts,
    in_namespace: bool,
    held: &Held,
) -> Result<u8, RunError> {
    let soft_gpu = held.folder.soft_gpu();
    let namespace = if in_namespace {
        let driver = driver_of(&held.folder)?;
        let state = soft_gpu.as_ref().map(|soft_gpu| environment.soft_gpu_state(soft_gpu));
        Some(Namespace::of(held, &artefacts.shim, &artefacts.preload, driver, state))
    } else {
        None
    };
    let places = namespace
        .as_ref()
        .map_or_else(|| plain_places(&held.folder), Namespace::places);
    let mut command = Command::new(&request.command[0]);
    command.args(&request.command[1..]);
    command.envs(launch::variables(
        &places,
        &held.limits.gpu,
        soft_gpu.as_ref(),
        environment,
    ));
    let report = match request.report {
        true => Some(Report::create(&held.folder.0)?),
        false => None,
    };
    if let Some(report) = &report {
        command.env(REPORT_VARIABLE, report.path());
    }
    let prepare = move || match &namespace {
        Some(namespace) => namespace.apply().map_err(|error| error.to_string()),
        None => Ok(()),
    };
    let status = supervise::run(command, held.lock(), prepare)?;
    if let Some(report) = report {
        report.print();
    }
    Ok(status)
}

fn plain_places(folder: &ShareFolder) -> Places {
    Places {
        shares: Some(folder.shares()),
        preload: Some(folder.lib().join(PRELOAD_FILE)),
        libraries: folder.lib(),
    }
}

fn driver_of(folder: &ShareFolder) -> Result<Driver, ShareError> {
    folder.driver().ok_or_else(|| ShareError::Damaged {
        share: folder.0.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        file: folder.0.join("driver"),
        reason: "its symlinks to the driver's libraries are missing".to_owned(),
        folder: folder.0.clone(),
    })
}

// === Entering a share ===

/// The inputs of entering a share.
struct Entry<'a> {
    request: &'a Request,
    environment: &'a Environment,
    artefacts: &'a Artefacts,
    run_dir: &'a RunDir,
    host_folder: Option<&'a HostFolder>,
}

impl Entry<'_> {
    /// Joins the share, or creates it. The folder's lock is not held while NVML lists the GPUs, so the share
    /// may appear or disappear meanwhile; then it decides again.
    fn enter(&self) -> Result<Held, RunError> {
        let mut asked: Option<(Driver, Listed)> = None;
        loop {
            let locked = self.run_dir.lock()?;
            share::sweep(self.run_dir, &locked);
            let found = match &self.request.share {
                Some(name) => share::find(self.run_dir, &locked, name)?,
                None => None,
            };
            let (driver, soft_gpu) = match &found {
                Some((folder, _)) => (driver_of(folder)?, folder.soft_gpu()),
                None => self.own_driver()?,
            };
            let gpus = asked
                .as_ref()
                .filter(|(of, _)| *of == driver)
                .map(|(_, listed)| listed.gpus.as_slice());
            let existing = found.as_ref().map(|(_, existing)| existing);
            let as_seen = if self.host_folder.is_some() {
                namespace::driver()
            } else {
                driver.clone()
            };
            let others: Vec<_> = share::all(self.run_dir, &locked)
                .into_iter()
                .map(|share| share.limits)
                .collect();
            let decision = plan::decide(self.request, existing, &as_seen, gpus, &others);
            match decision.map_err(|error| named(error, asked.as_ref()))? {
                Decision::AskGpus => {
                    drop(locked);
                    let listed = self.list_gpus(&driver, soft_gpu.as_ref(), existing.is_none())?;
                    asked = Some((driver, listed));
                }
                Decision::Join => {
                    let Some((folder, existing)) = found else {
                        continue;
                    };
                    self.same_soft_gpu(&existing.limits.share, soft_gpu.as_ref())?;
                    return Ok(share::join(self.run_dir, &locked, folder, existing.limits)?);
                }
                Decision::Create(limits) => {
                    if let Some(folder) = self.host_folder {
                        folder.ensure(&locked)?;
                    }
                    let links = Links {
                        shim: self.artefacts.shim.clone(),
                        preload: self.artefacts.preload.clone(),
                        driver,
                        soft_gpu,
                    };
                    let id = self.request.share.clone().unwrap_or_else(share::own_id);
                    return Ok(share::create(self.run_dir, &locked, &id, *limits, &links)?);
                }
            }
        }
    }

    /// Lists the GPUs. For a new share, also measures the memory that a context takes on its GPU.
    fn list_gpus(&self, driver: &Driver, soft_gpu: Option<&SoftGpu>, is_new: bool) -> Result<Listed, RunError> {
        let mut listed = gpus::list(&driver.libnvidia_ml, &self.request.gpu_memory, soft_gpu)?;
        let chosen = plan::chosen(self.request, &listed.gpus).filter(|_| is_new);
        if let Some(gpu) = chosen.and_then(|place| listed.gpus.get_mut(place)) {
            gpus::measure(driver, soft_gpu, gpu, &self.run_dir.context_sizes());
        }
        Ok(listed)
    }

    /// Finds the driver for a new share.
    fn own_driver(&self) -> Result<(Driver, Option<SoftGpu>), RunError> {
        if self.request.soft_gpu {
            let (libcuda, libnvidia_ml) = self.artefacts.soft_gpu()?;
            return Ok((
                Driver { libcuda, libnvidia_ml },
                Some(self.environment.soft_gpu.clone()),
            ));
        }
        let path = self.environment.ld_library_path.as_deref();
        let loader = Loader::of_machine(path, Path::new(&self.artefacts.shim));
        Ok((loader.driver()?, None))
    }

    /// A share has one software GPU: a variable that is set must have the share's value.
    fn same_soft_gpu(&self, share: &str, soft_gpu: Option<&SoftGpu>) -> Result<(), RunError> {
        let Some(of_share) = soft_gpu else {
            return Ok(());
        };
        for ((variable, wanted), (_, has)) in self
            .environment
            .soft_gpu
            .variables()
            .into_iter()
            .zip(of_share.variables())
        {
            if let Some(wanted) = wanted.filter(|wanted| Some(*wanted) != has) {
                return Err(RunError::OtherSoftGpu {
                    variable,
                    wanted: wanted.to_path_buf(),
                    share: share.to_owned(),
                    has: has.map(Path::to_path_buf),
                });
            }
        }
        Ok(())
    }
}
