//! Lets a test choose what NVML reports of the GPUs' health while programs run: a file `control` in the state folder,
//! read at each call.
//! It is a stand-in: no hardware fails, and only NVML's answers change.
//!
//! ```text
//! hang                every call waits until this line is gone
//! lost 1              GPU 1 fell off the bus: calls on it answer that it is lost
//! mig 0               GPU 0 is in MIG mode
//! gone 0 1            the instance with id 1 of GPU 0 was destroyed; for whoever asks while this line is there
//! reload 1            the kernel module was loaded again, once for each new number: no GPU has instances, and those whose
//!                     mode changes without a reset are not in MIG mode
//! reset 0 1           GPU 0 was reset, once for each new number: its instances are gone, and its pending mode holds
//! refuse 0 create 23  making an instance on GPU 0 answers this code of NVML; or compute (making a compute instance), destroy
//!                     (ending either), mode
//! held 0 1            a client that no list shows holds the instance with id 1 of GPU 0, as DCGM does: ending it answers IN_USE
//! slow 0 1500         each of these acts on GPU 0 begins 1500 ms after the call
//! late 0 1500         each of these acts on GPU 0 is done at once, and the call returns 1500 ms later
//! xid 0 79            GPU 0 raises XID 79, once for each such line that is added, to whoever waits for events then
//! ecc 0 3             GPU 0 counts 3 uncorrected ECC errors since the driver was loaded
//! remap 0 pending     rows of GPU 0's memory are to be remapped at its next reset
//! remap 0 failed      rows of GPU 0's memory could not be remapped
//! action 0 reset      the driver asks to have GPU 0 reset; or reboot, drain-p2p, drain-and-reset, or the action's number
//! unreadable 0        GPU 0's ECC errors, rows and action cannot be read: each such question fails
//! unsupported 0       GPU 0 and its driver know no ECC errors, rows and action, as older ones do not
//! pids wrong          every process is listed by PID 1, which is another one
//! ```
//!
//! These model the opposite of what is believed of NVIDIA's driver in MIG mode:
//!
//! ```text
//! uuids new           an instance that is made has another UUID than the last one in its place
//! bare listed         a GPU instance that is made is a MIG device before it has a compute instance
//! busy early          the mode is not switched on while a program uses the GPU; else the first instance is refused
//! resets 0            a change of GPU 0's mode resets it if nothing uses it; else such a mode is pending (Ampere)
//! nodes manual        capability nodes do not come and go with instances: nvidia-modprobe was not called
//! ```
//!
//! One fault a line. A missing file is no fault, and so is a line that says anything else: a test that misspells one sees
//! that nothing happens. Replace the file by a rename, because a reader may come between two writes. CUDA reads it only
//! with `memory_limits`, because a GPU in MIG mode has none, and for instances that are gone.

use std::fs;
use std::path::Path;
use std::time::Duration;

/// Name of the file.
pub const FILE: &str = "control";

/// The faults of a moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Control {
    pub hangs: bool,
    /// NVML lists processes by wrong PIDs.
    pub wrong_pids: bool,
    lost: Vec<usize>,
    mig: Vec<usize>,
    gone: Vec<(usize, u32)>,
    pub(crate) reload: Option<u64>,
    resets: Vec<(usize, u64)>,
    refused: Vec<(usize, Act, i32)>,
    held: Vec<(usize, u32)>,
    slow: Vec<(usize, u64)>,
    late: Vec<(usize, u64)>,
    pub(crate) new_uuids: bool,
    pub(crate) bare_instances: bool,
    pub(crate) early_busy: bool,
    pub(crate) nodes_are_manual: bool,
    resets_itself: Vec<usize>,
    unreadable: Vec<usize>,
    unsupported: Vec<usize>,
    xids: Vec<(usize, u64)>,
    uncorrected: Vec<(usize, u64)>,
    pending: Vec<usize>,
    failed: Vec<usize>,
    actions: Vec<(usize, u32)>,
}

/// An act on a GPU that a line can refuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    Create,
    Compute,
    Destroy,
    Mode,
}

const ACTS: [(&str, Act); 4] = [
    ("create", Act::Create),
    ("compute", Act::Compute),
    ("destroy", Act::Destroy),
    ("mode", Act::Mode),
];

/// NVML's recovery actions: the index of each name is its number.
const ACTIONS: [&str; 5] = ["none", "reset", "reboot", "drain-p2p", "drain-and-reset"];

/// A GPU's health, as NVML reports it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// Uncorrected ECC errors since the driver was loaded.
    pub uncorrected: u64,
    pub remap_pending: bool,
    pub remap_failed: bool,
    /// nvmlDeviceGpuRecoveryAction_t.
    pub action: u32,
}

/// Why health values cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoHealth {
    Unreadable,
    Unsupported,
}

impl Control {
    /// Reads the file of a state folder.
    #[must_use]
    pub fn read(state: &Path) -> Self {
        fs::read_to_string(state.join(FILE)).map_or_else(|_| Self::default(), |text| Self::parse(&text))
    }

    fn parse(text: &str) -> Self {
        let mut control = Self::default();
        for line in text.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words[..] {
                ["hang"] => control.hangs = true,
                ["lost", gpu] => control.lost.extend(gpu.parse::<usize>()),
                ["mig", gpu] => control.mig.extend(gpu.parse::<usize>()),
                ["gone", gpu, id] => control.gone.extend(pair(gpu, id)),
                ["unreadable", gpu] => control.unreadable.extend(gpu.parse::<usize>()),
                ["unsupported", gpu] => control.unsupported.extend(gpu.parse::<usize>()),
                ["xid", gpu, xid] => control.xids.extend(pair(gpu, xid)),
                ["ecc", gpu, count] => control.uncorrected.extend(pair(gpu, count)),
                ["remap", gpu, "pending"] => control.pending.extend(gpu.parse::<usize>()),
                ["remap", gpu, "failed"] => control.failed.extend(gpu.parse::<usize>()),
                ["action", gpu, name] => {
                    let number = ACTIONS.iter().position(|known| *known == name);
                    let number = number.map_or_else(|| name.to_owned(), |number| number.to_string());
                    control.actions.extend(pair(gpu, &number));
                }
                ["pids", "wrong"] => control.wrong_pids = true,
                _ => control.read_mig(&words),
            }
        }
        control
    }

    /// Lines about GPUs in MIG mode.
    fn read_mig(&mut self, words: &[&str]) {
        match *words {
            ["reload", number] => self.reload = number.parse().ok().or(self.reload),
            ["reset", gpu, number] => self.resets.extend(pair(gpu, number)),
            ["refuse", gpu, act, code] => {
                let act = ACTS.into_iter().find(|(name, _)| *name == act);
                let of_gpu: Option<(usize, i32)> = pair(gpu, code);
                self.refused
                    .extend(act.zip(of_gpu).map(|((_, act), (gpu, code))| (gpu, act, code)));
            }
            ["held", gpu, id] => self.held.extend(pair(gpu, id)),
            ["slow", gpu, ms] => self.slow.extend(pair(gpu, ms)),
            ["late", gpu, ms] => self.late.extend(pair(gpu, ms)),
            ["uuids", "new"] => self.new_uuids = true,
            ["bare", "listed"] => self.bare_instances = true,
            ["busy", "early"] => self.early_busy = true,
            ["nodes", "manual"] => self.nodes_are_manual = true,
            ["resets", gpu] => self.resets_itself.extend(gpu.parse::<usize>()),
            _ => {}
        }
    }

    #[must_use]
    pub fn is_lost(&self, gpu: usize) -> bool {
        self.lost.contains(&gpu)
    }

    #[must_use]
    pub fn has_mig(&self, gpu: usize) -> bool {
        self.mig.contains(&gpu)
    }

    /// Returns true if the instance with this id was destroyed.
    #[must_use]
    pub fn is_gone(&self, gpu: usize, id: u32) -> bool {
        self.gone.contains(&(gpu, id))
    }

    /// The number of a GPU's last reset.
    #[must_use]
    pub fn reset_of(&self, gpu: usize) -> Option<u64> {
        let mut own = self.resets.iter().rev().filter(|(other, _)| *other == gpu);
        own.next().map(|(_, number)| *number)
    }

    /// NVML's code with which an act on a GPU is refused.
    #[must_use]
    pub fn refused(&self, gpu: usize, act: Act) -> Option<i32> {
        let mut all = self.refused.iter();
        all.find(|(of, what, _)| (*of, *what) == (gpu, act))
            .map(|(_, _, code)| *code)
    }

    /// Returns true if a client that no list shows holds the instance with this id.
    #[must_use]
    pub fn is_held(&self, gpu: usize, id: u32) -> bool {
        self.held.contains(&(gpu, id))
    }

    /// How long an act on a GPU waits before it begins.
    #[must_use]
    pub fn slow(&self, gpu: usize) -> Duration {
        Duration::from_millis(last(&self.slow, gpu))
    }

    /// How long a call returns after its act on a GPU is done.
    #[must_use]
    pub fn late(&self, gpu: usize) -> Duration {
        Duration::from_millis(last(&self.late, gpu))
    }

    /// Returns true if a change of a GPU's mode resets it.
    #[must_use]
    pub fn resets_itself(&self, gpu: usize) -> bool {
        self.resets_itself.contains(&gpu)
    }

    /// The XIDs of all GPUs, in their order in the file.
    #[must_use]
    pub fn xids(&self) -> &[(usize, u64)] {
        &self.xids
    }

    /// # Errors
    /// The GPU's health cannot be read.
    pub fn health(&self, gpu: usize) -> Result<Health, NoHealth> {
        if self.unreadable.contains(&gpu) {
            return Err(NoHealth::Unreadable);
        }
        if self.unsupported.contains(&gpu) {
            return Err(NoHealth::Unsupported);
        }
        Ok(Health {
            uncorrected: last(&self.uncorrected, gpu),
            remap_pending: self.pending.contains(&gpu),
            remap_failed: self.failed.contains(&gpu),
            action: last(&self.actions, gpu),
        })
    }
}

fn pair<T: std::str::FromStr>(gpu: &str, value: &str) -> Option<(usize, T)> {
    Some((gpu.parse().ok()?, value.parse().ok()?))
}

/// Returns the value of the last entry for a GPU.
fn last<T: Copy + Default>(of: &[(usize, T)], gpu: usize) -> T {
    let mut own = of.iter().rev().filter(|(other, _)| *other == gpu);
    own.next().map_or_else(T::default, |(_, value)| *value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_is_a_fault() {
        let control = Control::parse("lost 1\n  mig 0 \nhang\nlost 2\n");
        assert!(control.hangs && control.is_lost(1) && control.is_lost(2) && control.has_mig(0));
        assert!(!control.is_lost(0) && !control.has_mig(1));
        let gone = Control::parse("gone 0 1\ngone 1 x\n");
        assert!(gone.is_gone(0, 1) && !gone.is_gone(1, 1) && !gone.is_gone(0, 2));
        assert_eq!(Control::parse("hangs\nlost one\nmig\ngone 1\n\n"), Control::default());
        assert_eq!(Control::read(Path::new("/nowhere")), Control::default());
    }

    #[test]
    fn acts_on_instances_are_refused_and_delayed_for_each_gpu() {
        let control = Control::parse(
            "reload 1\nreload 2\nreset 1 7\nrefuse 0 create 23\nrefuse 1 mode 4\nheld 0 3\nslow 0 5\nlate 1 6\n\
             uuids new\nbare listed\nbusy early\nnodes manual\nresets 1\n",
        );
        assert_eq!(
            (control.reload, control.reset_of(0), control.reset_of(1)),
            (Some(2), None, Some(7))
        );
        let refused = [Act::Create, Act::Compute, Act::Destroy, Act::Mode].map(|act| control.refused(0, act));
        assert_eq!(refused, [Some(23), None, None, None]);
        assert_eq!(control.refused(1, Act::Mode), Some(4));
        assert!(
            control.is_held(0, 3) && !control.is_held(1, 3) && control.resets_itself(1) && !control.resets_itself(0)
        );
        assert_eq!([0, 1].map(|gpu| control.slow(gpu).as_millis()), [5, 0]);
        assert_eq!([0, 1].map(|gpu| control.late(gpu).as_millis()), [0, 6]);
        assert!(control.new_uuids && control.bare_instances && control.early_busy && control.nodes_are_manual);
        let misspelt = "reload x\nreset 1\nrefuse 0 make 23\nheld 0\nslow 0 long\nuuids old\nresets\n";
        assert_eq!(Control::parse(misspelt), Control::default());
    }

    #[test]
    fn a_gpus_health_is_what_its_lines_say() {
        let control = Control::parse(
            "xid 0 79\nxid 1 13\necc 0 3\nremap 0 pending\nremap 1 failed\naction 0 reset\naction 0 reboot\naction 1 7\n\
             unreadable 2\nunsupported 3\npids wrong\n",
        );
        assert_eq!(control.xids(), [(0, 79), (1, 13)]);
        let expected = Health {
            uncorrected: 3,
            remap_pending: true,
            remap_failed: false,
            action: 2,
        };
        assert_eq!(control.health(0), Ok(expected), "the last action counts");
        let expected = Health {
            remap_failed: true,
            action: 7,
            ..Health::default()
        };
        assert_eq!(control.health(1), Ok(expected));
        assert_eq!(control.health(2), Err(NoHealth::Unreadable));
        assert_eq!(control.health(3), Err(NoHealth::Unsupported));
        assert_eq!(control.health(4), Ok(Health::default()));
        assert!(control.wrong_pids);
        let misspelt = "xid 0\nxid a 1\necc 0 many\nremap 0 perhaps\naction 0 dance\npids right\nunreadable\n";
        assert_eq!(Control::parse(misspelt), Control::default());
    }
}
