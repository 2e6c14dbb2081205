//! One fault that `vgpu doctor` has found.

use std::fmt;

use serde::Serialize;

/// Something that does not work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    /// `DaemonSet dra-driver-vgpu/dra-driver-vgpu-plugin`.
    pub(crate) object: String,
    /// The fault, with the value that shows it.
    pub(crate) value: String,
    /// The consequence for users.
    pub(crate) breaks: String,
    /// How to repair it: a command, if one does it.
    pub(crate) mend: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A line break in text that users write would look like a line of this program.
        let [object, value, breaks, mend] =
            [&self.object, &self.value, &self.breaks, &self.mend].map(|words| words.replace(char::is_control, " "));
        write!(f, "{object}: {value}\n  breaks: {breaks}\n  mend:   {mend}")
    }
}
