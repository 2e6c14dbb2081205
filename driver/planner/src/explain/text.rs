//! Writes a request as words, and cuts texts to a length.

use vgpu_allocator::model::{DeviceClass, Exactly, Mode};
use vgpu_api::{capacity, class, device_type as types};
use vgpu_quantity::Quantity;

/// A request in words. `class` is `None` if it does not exist.
pub(crate) struct RequestText<'a> {
    pub(crate) ask: &'a Exactly,
    pub(crate) class: Option<&'a DeviceClass>,
}

impl std::fmt::Display for RequestText<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { ask, class } = self;
        match &ask.mode {
            Mode::Exact(1) => {}
            Mode::Exact(count) => write!(f, "{count} times ")?,
            Mode::All => f.write_str("all of a node's devices, each with ")?,
            Mode::Unknown(mode) => write!(f, "{mode} times ")?,
        }
        let Some(class) = class.filter(|class| class.is_ours()) else {
            return write!(f, "a device of class {}", ask.class);
        };
        if ask.admin_access.unwrap_or(false) || class.device_type() == types::MONITOR {
            return f.write_str("administrative access to a GPU");
        }
        if class.device_type() == types::SLOT {
            return f.write_str("a slot of a GPU");
        }
        if class.device_type() == types::MIG {
            return f.write_str("an instance of a GPU in MIG mode");
        }
        if class.metadata.name == class::GPU {
            return f.write_str("a whole GPU");
        }
        let requested = |name: &str| ask.capacity.as_ref()?.requests.get(name).map(Quantity::to_string);
        match requested(capacity::MEMORY) {
            Some(memory) => write!(f, "memory {memory}")?,
            None => f.write_str("all memory of a GPU")?,
        }
        let cores = requested(capacity::CORES);
        write!(f, ", cores {}", cores.as_deref().unwrap_or("0"))
    }
}

/// Cuts a text to `most` bytes; `...` shows that something was cut off.
#[must_use]
pub fn cut(text: &str, most: usize) -> String {
    cut_before(text, "", most)
}

/// Joins both texts in at most `most` bytes: cuts the end of the first, and the end of the second only if that is too
/// long by itself.
pub(crate) fn cut_before(text: &str, end: &str, most: usize) -> String {
    const LEFT_OUT: &str = "...";
    if text.len() + end.len() <= most {
        return format!("{text}{end}");
    }
    let end = beginning(end, most.saturating_sub(LEFT_OUT.len()));
    let text = beginning(text, most.saturating_sub(LEFT_OUT.len() + end.len()));
    format!("{text}{LEFT_OUT}{end}")
}

/// The longest beginning of a text that has at most `most` bytes.
fn beginning(text: &str, most: usize) -> &str {
    let most = most.min(text.len());
    let end = (0..=most).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_long_is_cut_before_the_end() {
        assert_eq!(cut("short", 5), "short");
        assert_eq!(cut("longer", 5), "lo...");
        assert_eq!(cut("\u{e9}\u{e9}\u{e9}", 5), "\u{e9}...");
        assert_eq!(cut_before("a text", "; end", 11), "a text; end");
        assert_eq!(cut_before("a long text", "; end", 11), "a l...; end");
        assert_eq!(cut_before("a text", "; a long end", 8), "...; a l");
        assert_eq!(cut_before("text", "", 2), "...");
    }
}
