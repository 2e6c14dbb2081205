//! What a test has NVML say of healthy GPUs, while programs run: a file `control` in the state folder, read at each call.
//!
//! ```text
//! hang        every call waits until this line is gone
//! lost 1      GPU 1 fell off the bus: calls on it answer that it is lost
//! mig 0       GPU 0 is in MIG mode
//! ```
//!
//! One fault a line. A missing file is no fault, and so is a line that says anything else: a test that misspells one sees
//! that nothing happens. Replace the file by a rename, because a reader may come between two writes. CUDA does not read it.

use std::fs;
use std::path::Path;

/// Name of the file.
pub const FILE: &str = "control";

/// The faults of a moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Control {
    pub hangs: bool,
    lost: Vec<usize>,
    mig: Vec<usize>,
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
                _ => {}
            }
        }
        control
    }

    #[must_use]
    pub fn is_lost(&self, gpu: usize) -> bool {
        self.lost.contains(&gpu)
    }

    #[must_use]
    pub fn has_mig(&self, gpu: usize) -> bool {
        self.mig.contains(&gpu)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_is_a_fault() {
        let control = Control::parse("lost 1\n  mig 0 \nhang\nlost 2\n");
        assert!(control.hangs && control.is_lost(1) && control.is_lost(2) && control.has_mig(0));
        assert!(!control.is_lost(0) && !control.has_mig(1));
        assert_eq!(Control::parse("hangs\nlost one\nmig\n\n"), Control::default());
        assert_eq!(Control::read(Path::new("/nowhere")), Control::default());
    }
}
