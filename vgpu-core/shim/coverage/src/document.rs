//! Writes docs/coverage.md from the rows.

use crate::coverage::{Api, Entry};
use crate::rows::Fate;
use std::fmt::Write as _;

const OPENING: &str = "\
# Coverage

What becomes of every function of the CUDA driver API and of NVML inside a share. This file is generated from `vgpu-core/shim/coverage/` by `UPDATE=1 cargo test -p vgpu-coverage --test table`; a test fails when it is stale.

| fate | means |
|---|---|
| charged | may take device memory: the bytes are charged to the share before the driver is asked, and the call fails with out-of-memory where they are not free |
| released | gives back what was charged, after the driver has |
| limited | tells, or is held to, what the share may use |
| virtualised | sees the GPUs and processes of the share instead of those of the node |
| passed through | goes to the driver as it came: it takes no device memory that is not charged elsewhere, for the reason given |
| unaccounted | a gap: it takes, keeps or shows what is not the share's, and needs a hook. `cargo test -p vgpu-coverage` fails while there is one |

The first column is the function as a program writes it. Its variants are what the library exports for it: older and newer forms (`_v2`), and those of programs that are built for a default stream a thread (`_ptsz`, `_ptds`). A variant with another fate has a row of its own. 2 MiB is the granule in which a driver takes memory.

## When CUDA gets a new function

1. Name the new packages in `vgpu-core/shim/coverage/headers/`, by version and hash, and run `cargo test -p vgpu-coverage --test headers`: it lists the functions that are new.
2. Add their names to `vgpu-core/shim/names/` (`vgpu-core/soft-gpu/names/generate.py` writes them).
3. Read what each does. Does it take device memory, give it back, keep it alive after it was freed, tell how much there is, or take or tell a GPU by number? Then it needs a line in `vgpu-core/shim/src/table/`, with its class.
4. Put it under a heading in `vgpu-core/shim/coverage/cuda.txt` or `nvml.txt`: `FATE | REASON`, or `FATE | BYTES | REASON` where memory is charged or given back. The fate of a hooked name is its class.
5. Run `UPDATE=1 cargo test -p vgpu-coverage --test table`, and read the difference.
";

/// The whole document.
pub fn render(apis: &[Api]) -> String {
    let mut out = String::from(OPENING);
    for api in apis {
        out.push_str(&section(api));
    }
    out
}

fn section(api: &Api) -> String {
    let entries = api.entries();
    let exports: usize = entries.iter().map(|entry| entry.exports.len()).sum();
    let counts: Vec<String> = Fate::ALL
        .into_iter()
        .filter_map(|fate| {
            let count = entries.iter().filter(|entry| entry.row.fate == fate).count();
            (count > 0).then(|| format!("{count} {fate}"))
        })
        .collect();
    let mut out = format!("\n## {}\n\n", api.title);
    let _ = writeln!(
        out,
        "{} functions under {exports} names: {}.\n",
        entries.len(),
        counts.join(", ")
    );
    out.push_str("| function | variants | fate | what is charged or given back | reason |\n|---|---|---|---|---|\n");
    entries.iter().for_each(|entry| out.push_str(&line(entry)));
    out
}

fn line(entry: &Entry<'_>) -> String {
    let suffix = |export: &&str| {
        let rest = export.strip_prefix(entry.function).unwrap_or(export);
        (!rest.is_empty()).then(|| format!("`{rest}`"))
    };
    let variants: Vec<String> = entry.exports.iter().filter_map(suffix).collect();
    let plain = entry.exports.contains(&entry.function);
    let variants = match (plain, variants.is_empty()) {
        (true, _) => variants.join(" "),
        (false, _) => format!("only {}", variants.join(" ")),
    };
    let fate = match entry.row.fate {
        Fate::Unaccounted => "**unaccounted**",
        fate => fate.word(),
    };
    let row = entry.row;
    let cells = [
        &format!("`{}`", entry.function),
        &variants,
        fate,
        &row.bytes,
        &row.reason,
    ];
    format!(
        "| {} |\n",
        cells.map(|cell| if cell.is_empty() { "–" } else { cell }).join(" | ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows;

    #[test]
    fn a_row_a_function() {
        let api = Api {
            title: "Test",
            names: ["cuA", "cuA_v2", "cuB_v1"].map(String::from).into(),
            rows: rows::parse("charged | all | first\n  cuA\nunaccounted | not yet\n  cuB").expect("rows"),
            hooks: Vec::new(),
        };
        let text = section(&api);
        assert!(
            text.contains("2 functions under 3 names: 1 charged, 1 unaccounted."),
            "{text}"
        );
        assert!(text.contains("| `cuA` | `_v2` | charged | all | first |\n"), "{text}");
        assert!(
            text.contains("| `cuB` | only `_v1` | **unaccounted** | – | not yet |\n"),
            "{text}"
        );
    }
}
