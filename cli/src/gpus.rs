//! Lists the machine's GPUs through NVML.
//!
//! The driver's library runs in a helper process, `vgpu list-gpus LIBRARY`: threads, files, output and
//! crashes of the library end with it, and COMMAND starts in a process that never loaded it.
//!
//! ```text
//! one line per GPU:  "vgpu-gpu index uuid total reserved driver-version model"; other lines are the driver's own output
//! or, if it is lost: "vgpu-silent index reason"
//! ```
#![forbid(unsafe_code)]

use crate::driver::Driver;
use crate::environment::SoftGpu;
use crate::run_dir::lock_file;
use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, SystemTime};
use vgpu_context_size::{ContextSize, Kind, Sizes};

/// Stands for a version or a model that the driver does not tell.
const UNNAMED: &str = "-";
/// Prefix of the helper's lines.
const MARK: &str = "vgpu-gpu ";
/// Prefix of its lines of GPUs that do not answer.
const MARK_SILENT: &str = "vgpu-silent ";
/// How long a measurement that failed is not repeated: a run must not wait for a driver that hangs each time.
const FAILED_FOR: Duration = Duration::from_secs(5 * 60);
/// How long the turn of others that measure is waited for.
const TURN: Duration = Duration::from_secs(30);

/// One GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// NVML's index.
    pub index: u32,
    pub uuid: String,
    pub total: u64,
    pub reserved: u64,
    pub driver_version: String,
    pub model: String,
    /// The size of a context. None: not measured.
    pub context: Option<ContextSize>,
}

/// The GPUs of a machine.
#[derive(Debug, Default)]
pub struct Listed {
    pub gpus: Vec<Gpu>,
    /// A sentence for each that NVML counts and cannot describe, as one that fell off the bus.
    pub silent: Vec<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum GpuError {
    #[error("cannot run {}, the helper that asks NVML: {source}{}", program.display(), remedy(source))]
    Helper { program: PathBuf, source: std::io::Error },
    /// The software GPU's own message, which names the variable and its value.
    #[error("{0}")]
    SoftGpu(String),
    #[error("the GPUs cannot be listed through {}: {reason}{}", library.display(), hint(*.soft))]
    Driver {
        library: PathBuf,
        reason: String,
        soft: bool,
    },
}

/// The remedy for an error that the caller's limit of open files causes.
fn remedy(error: &std::io::Error) -> &'static str {
    if error.raw_os_error() == Some(libc::EMFILE) {
        "; raise the limit of open files (ulimit -n)"
    } else {
        ""
    }
}

fn hint(soft: bool) -> &'static str {
    if soft {
        ""
    } else {
        "; without a working NVIDIA driver use --soft-gpu for the software GPU"
    }
}

impl Gpu {
    /// The memory for all shares together, as the kubelet plugin publishes it.
    #[must_use]
    pub fn published(&self) -> u64 {
        const STEP: u64 = 1 << 20;
        self.total.saturating_sub(self.reserved) / STEP * STEP
    }

    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.strip_prefix(MARK)?.splitn(6, ' ');
        let gpu = Self {
            index: fields.next()?.parse().ok()?,
            uuid: fields.next()?.to_owned(),
            total: fields.next()?.parse().ok()?,
            reserved: fields.next()?.parse().ok()?,
            driver_version: fields.next()?.to_owned(),
            model: fields.next()?.to_owned(),
            context: None,
        };
        Some(gpu)
    }
}

/// Lists the GPUs of the NVML at `library`. With `soft_gpu` that is the software GPU's, with these variables.
///
/// # Errors
/// NVML failed, no GPU answers, or a variable of the software GPU is not valid.
pub fn list(library: &Path, soft_gpu: Option<&SoftGpu>) -> Result<Listed, GpuError> {
    let program = PathBuf::from("/proc/self/exe");
    let mut helper = Command::new(&program);
    helper
        .arg0("vgpu")
        .arg("list-gpus")
        .arg(library)
        .env_remove("LD_PRELOAD")
        .stdin(Stdio::null());
    set(&mut helper, soft_gpu);
    let output = helper.output().map_err(|source| GpuError::Helper { program, source })?;
    let text = String::from_utf8_lossy(&output.stdout);
    let listed = Listed {
        gpus: text.lines().filter_map(Gpu::parse).collect(),
        silent: text.lines().filter_map(silence).collect(),
    };
    match output.status.success() && !listed.gpus.is_empty() {
        true => Ok(listed),
        false => {
            let said = String::from_utf8_lossy(&output.stderr);
            let silent = || format!("the helper ended with {}", output.status);
            let reason = said.lines().next().map_or_else(silent, str::to_owned);
            Err(blame(library, soft_gpu, reason))
        }
    }
}

fn silence(line: &str) -> Option<String> {
    let (index, reason) = line.strip_prefix(MARK_SILENT)?.split_once(' ')?;
    Some(format!("GPU {index} does not answer: NVML says: {reason}"))
}

/// Measures what a context takes on `gpu`, in a helper process, unless `known` has it. The software GPU's depends on
/// its profile, so it is not kept. A size that cannot be measured stays unknown, which is said on stderr, and the
/// library reserves a default.
pub fn measure(driver: &Driver, soft_gpu: Option<&SoftGpu>, gpu: &mut Gpu, known: &Path) {
    let kind = Kind {
        driver_version: gpu.driver_version.clone(),
        model: gpu.model.clone(),
    };
    let keeps = soft_gpu.is_none() && kind.driver_version != UNNAMED && kind.model != UNNAMED;
    let read = || if keeps { Sizes::read(known) } else { Sizes::none(known) };
    gpu.context = read().get(&kind);
    if gpu.context.is_some() {
        return;
    }
    // Several may start at once, and contexts of the others would change the figures. So they measure one after another,
    // and the later ones usually find a figure. One that cannot get the lock measures all the same.
    let _turn = lock_file(&beside(known, "-lock"), TURN);
    let mut sizes = read();
    gpu.context = sizes.get(&kind);
    if gpu.context.is_some() {
        return;
    }
    let failure = Failure::of(known, &kind);
    if keeps && failure.is_recent() {
        return;
    }
    let mut helper = Command::new("/proc/self/exe");
    helper.arg0("vgpu");
    set(&mut helper, soft_gpu);
    let asked = vgpu_context_size::Gpu {
        libcuda: driver.libcuda.clone(),
        libnvidia_ml: driver.libnvidia_ml.clone(),
        uuid: gpu.uuid.clone(),
    };
    match vgpu_context_size::ask(helper, &asked, vgpu_context_size::PATIENCE) {
        Ok(size) => {
            gpu.context = Some(size);
            // The next run measures again if it cannot be kept.
            let _ = sizes.put(kind, size, keeps);
        }
        Err(error) => {
            // A caller without stderr runs COMMAND all the same.
            let _ = writeln!(std::io::stderr(), "vgpu run: {}", unmeasured(&gpu.uuid, &error));
            if keeps {
                failure.keep();
            }
        }
    }
}

/// A file beside the sizes.
fn beside(known: &Path, suffix: &str) -> PathBuf {
    let mut name = known.file_name().unwrap_or_default().to_owned();
    name.push(suffix);
    known.with_file_name(name)
}

fn unmeasured(uuid: &str, error: &str) -> String {
    format!(
        "what a CUDA context takes on {uuid} cannot be measured: {error}; 600 MiB are reserved for each, or the whole \
         share if it is smaller"
    )
}

/// A file beside the sizes that names the kind that could not be measured last. Its time is that of the attempt.
struct Failure {
    path: PathBuf,
    kind: String,
}

// === impl Failure ===

impl Failure {
    fn of(known: &Path, kind: &Kind) -> Self {
        Self {
            path: beside(known, "-failed"),
            kind: format!("{}\t{}", kind.driver_version, kind.model),
        }
    }

    /// Returns true for some minutes after the attempt. A clock that was set back ends that.
    fn is_recent(&self) -> bool {
        let modified = std::fs::metadata(&self.path).and_then(|file| file.modified());
        let age = modified
            .ok()
            .and_then(|time| SystemTime::now().duration_since(time).ok());
        age.is_some_and(|age| age < FAILED_FOR)
            && std::fs::read_to_string(&self.path).is_ok_and(|kind| kind == self.kind)
    }

    /// One that cannot be kept costs the next run an attempt.
    fn keep(&self) {
        let _ = std::fs::write(&self.path, &self.kind);
    }
}

fn set(helper: &mut Command, soft_gpu: Option<&SoftGpu>) {
    for (variable, value) in soft_gpu.into_iter().flat_map(SoftGpu::variables) {
        match value {
            Some(value) => helper.env(variable, value),
            None => helper.env_remove(variable),
        };
    }
}

/// Chooses the error: if a variable of the software GPU is wrong, its message starts with the variable.
fn blame(library: &Path, soft_gpu: Option<&SoftGpu>, reason: String) -> GpuError {
    let variables = soft_gpu.into_iter().flat_map(SoftGpu::variables);
    let mut named = variables.filter_map(|(variable, _)| reason.find(&format!("{variable}=")));
    match named.next() {
        Some(at) => GpuError::SoftGpu(reason[at..].to_owned()),
        None => GpuError::Driver {
            library: library.to_path_buf(),
            reason,
            soft: soft_gpu.is_some(),
        },
    }
}

/// The helper process.
#[must_use]
pub fn helper(library: &Path) -> ExitCode {
    match ask(library) {
        Ok(gpus) => {
            // The driver may have written an unfinished line.
            println!();
            for (index, gpu) in (0..).zip(gpus) {
                match gpu {
                    Ok(gpu) => println!(
                        "{MARK}{index} {} {} {} {} {}",
                        gpu.uuid, gpu.total, gpu.reserved, gpu.driver_version, gpu.model
                    ),
                    Err(error) => println!("{MARK_SILENT}{index} {}", error.to_string().replace('\n', " ")),
                }
            }
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns each GPU that NVML counts, in its order. If none answers, the first one's error.
fn ask(library: &Path) -> Result<Vec<Result<Gpu, NvmlError>>, NvmlError> {
    let nvml = Nvml::builder().lib_path(library.as_os_str()).init()?;
    let count = nvml.device_count()?;
    if count == 0 {
        return Err(NvmlError::NotFound);
    }
    // Only to keep what a context takes: a driver that does not tell is measured for each share.
    let driver_version = nvml.sys_driver_version().unwrap_or_default();
    let driver_version = if driver_version.is_empty() {
        UNNAMED
    } else {
        &driver_version
    };
    let gpus: Vec<_> = (0..count)
        .map(|index| {
            let device = nvml.device_by_index(index)?;
            let memory = device.memory_info()?;
            Ok(Gpu {
                index,
                uuid: device.uuid()?,
                total: memory.total,
                reserved: memory.reserved,
                driver_version: driver_version.replace(' ', "-"),
                model: device.name().unwrap_or_else(|_| UNNAMED.to_owned()),
                context: None,
            })
        })
        .collect();
    match gpus.iter().any(Result::is_ok) {
        true => Ok(gpus),
        false => gpus
            .into_iter()
            .next()
            .map_or(Err(NvmlError::NotFound), |first| first.map(|_| Vec::new())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_of_open_files_is_named_with_its_remedy() {
        let error = |errno| GpuError::Helper {
            program: "/proc/self/exe".into(),
            source: std::io::Error::from_raw_os_error(errno),
        };
        let line = error(libc::EMFILE).to_string();
        assert!(
            line.ends_with("(os error 24); raise the limit of open files (ulimit -n)"),
            "{line}"
        );
        assert!(!error(libc::EACCES).to_string().contains("ulimit"));
    }

    #[test]
    fn what_is_published_is_what_is_not_reserved_in_whole_mebibytes() {
        let gpu = |total, reserved| Gpu {
            index: 0,
            uuid: "GPU-1".into(),
            total,
            reserved,
            driver_version: String::new(),
            model: String::new(),
            context: None,
        };
        assert_eq!(gpu(80 << 30, 0).published(), 80 << 30);
        assert_eq!(gpu(80 << 30, 1).published(), (80 << 30) - (1 << 20));
        assert_eq!(gpu(1, 2).published(), 0);
    }

    #[test]
    fn a_failed_measurement_is_not_repeated_for_some_minutes() {
        let folder = tempfile::tempdir().expect("a folder");
        let kind = |version: &str| Kind {
            driver_version: version.into(),
            model: "NVIDIA H100 80GB".into(),
        };
        let failure = |version| Failure::of(&folder.path().join(".contexts"), &kind(version));
        assert!(!failure("550.1").is_recent());
        failure("550.1").keep();
        assert!(failure("550.1").is_recent());
        assert!(!failure("560.1").is_recent(), "another driver");
        let file = std::fs::File::options()
            .write(true)
            .open(&failure("550.1").path)
            .expect("the file");
        let long_ago = SystemTime::now() - FAILED_FOR;
        file.set_modified(long_ago).expect("a time");
        assert!(!failure("550.1").is_recent());
    }

    #[test]
    fn an_unmeasured_context_is_said_in_one_line_with_what_is_reserved_instead() {
        let line = unmeasured("GPU-1", "the helper has not answered for 20 s");
        for words in ["GPU-1", "not answered for 20 s", "600 MiB are reserved"] {
            assert!(line.contains(words), "{line}");
        }
        assert_eq!(line.lines().count(), 1, "{line}");
    }

    #[test]
    fn a_helpers_line_is_read_whole_or_not_at_all() {
        let gpu = Gpu {
            index: 1,
            uuid: "GPU-1".into(),
            total: 3,
            reserved: 2,
            driver_version: "550.1".into(),
            model: "NVIDIA H100 80GB".into(),
            context: None,
        };
        assert_eq!(Gpu::parse("vgpu-gpu 1 GPU-1 3 2 550.1 NVIDIA H100 80GB"), Some(gpu));
        for line in [
            "",
            "1",
            "1 GPU-1 3",
            "1 GPU-1 3 2",
            "x GPU-1 3 2 5 m",
            "1 GPU-1 -3 2 5 m",
        ] {
            assert_eq!(Gpu::parse(&format!("vgpu-gpu {line}")), None, "{line:?}");
            assert_eq!(Gpu::parse(line), None, "{line:?}");
        }
    }

    #[test]
    fn the_software_gpus_message_names_its_variable() {
        let soft_gpu = SoftGpu::default();
        let line = |reason: &str, soft: bool| {
            let error = blame(Path::new("/lib/nvml"), soft.then_some(&soft_gpu), reason.into());
            error.to_string()
        };
        assert_eq!(line("soft-gpu: SOFT_GPU_STATE=/x: no", true), "SOFT_GPU_STATE=/x: no");
        assert_eq!(line("SOFT_GPU_PROFILE=/y: no", true), "SOFT_GPU_PROFILE=/y: no");
        assert!(line("driver not loaded", true).ends_with("through /lib/nvml: driver not loaded"));
        assert!(line("SOFT_GPU_STATE=/x: no", false).ends_with("use --soft-gpu for the software GPU"));
    }
}
