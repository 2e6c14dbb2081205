//! The page of a bundle: one HTML text with a bar for each GPU. It has no script and loads nothing (a
//! Content-Security-Policy enforces that), and every text in it is escaped.

use std::fmt::Write as _;

use vgpu_quantity::readable_bytes;

pub(super) struct Page {
    pub(super) title: String,
    /// Doctor's answer.
    pub(super) doctor: String,
    pub(super) nodes: Vec<Node>,
    /// One line for each list that was not read, or was cut off.
    pub(super) notes: Vec<String>,
}

pub(super) struct Node {
    pub(super) name: String,
    /// Source of its figures.
    pub(super) note: String,
    pub(super) gpus: Vec<Gpu>,
}

/// Memory in bytes.
pub(super) struct Gpu {
    pub(super) name: String,
    pub(super) model: String,
    pub(super) memory: u64,
    /// `None`: not known.
    pub(super) used: Option<u64>,
    /// Why the GPU takes no new share; empty if it does.
    pub(super) problem: String,
    pub(super) shares: Vec<Share>,
}

pub(super) struct Share {
    pub(super) label: String,
    pub(super) held: u64,
    pub(super) used: Option<u64>,
    pub(super) without_claim: bool,
}

const HEAD: &str = "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
<meta name=\"viewport\" content=\"width=device-width\">\n<style>\n\
body { font: 14px/1.4 system-ui, sans-serif; margin: 2em auto; max-width: 70em; padding: 0 1em; color: #222; background: #fff; }\n\
h1 { font-size: 1.4em; } h2 { font-size: 1.1em; margin: 1.5em 0 .3em; } small { color: #666; font-weight: normal; }\n\
.gpu { margin: .6em 0; } .bar { display: flex; height: 2.2em; border: 1px solid #888; background: #eee; overflow: hidden; }\n\
.share { position: relative; box-sizing: border-box; border-right: 1px solid #fff; background: #a9c7e8; overflow: hidden; }\n\
.share.lost { background: #e8b3a9; } .used { position: absolute; inset: 0 auto 0 0; background: #3b78b8; opacity: .55; }\n\
.share.lost .used { background: #b8503b; } .label { position: relative; padding: .3em .4em; white-space: nowrap; font-size: .85em; }\n\
.problem { color: #a00; } .key span { display: inline-block; width: 1em; height: 1em; vertical-align: -.15em; margin: 0 .3em 0 1em; }\n\
pre { white-space: pre-wrap; overflow-wrap: anywhere; background: #f6f6f6; padding: .6em; }\n</style>\n";

/// Returns a text that is safe in an element, and in an attribute in quotes.
fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            letter if letter.is_control() && letter != '\n' => safe.push(' '),
            letter => safe.push(letter),
        }
    }
    safe
}

/// Returns a width in percent of `whole`; 0 if `whole` is 0.
#[expect(clippy::cast_precision_loss, reason = "a width in a picture")]
fn percent(part: u64, whole: u64) -> f64 {
    match whole {
        0 => 0.0,
        whole => (part as f64 / whole as f64 * 100.0).min(100.0),
    }
}

fn in_use(bytes: Option<u64>) -> String {
    bytes.map_or_else(
        || "use not known".to_owned(),
        |bytes| format!("{} used", readable_bytes(bytes)),
    )
}

impl Page {
    // Writing to a String cannot fail.
    pub(super) fn html(&self) -> String {
        let title = escaped(&self.title);
        let mut html = format!("{HEAD}<title>{title}</title></head><body>\n<h1>{title}</h1>\n");
        let _ = writeln!(
            html,
            "<p class=\"key\"><span style=\"background:#a9c7e8\"></span>held by a share<span style=\"background:#7099c8\"></span>\
             used of it<span style=\"background:#e8b3a9\"></span>held without a claim<span style=\"background:#eee\"></span>free</p>"
        );
        if self.nodes.is_empty() {
            html.push_str("<p>No node offers a GPU, or none may be read.</p>\n");
        }
        for node in &self.nodes {
            let _ = writeln!(
                html,
                "<h2>{} <small>{}</small></h2>",
                escaped(&node.name),
                escaped(&node.note)
            );
            node.gpus.iter().for_each(|gpu| gpu.bar(&mut html));
        }
        for (heading, text) in [("vgpu doctor", &self.doctor), ("What was read", &self.notes.join("\n"))] {
            let _ = writeln!(html, "<h2>{heading}</h2>\n<pre>{}</pre>", escaped(text));
        }
        html.push_str("</body></html>\n");
        html
    }
}

impl Gpu {
    fn bar(&self, html: &mut String) {
        let held = self
            .shares
            .iter()
            .fold(0_u64, |sum, share| sum.saturating_add(share.held));
        let whole = self.memory.max(held);
        let used = in_use(self.used);
        let free = readable_bytes(self.memory.saturating_sub(held));
        let _ = write!(
            html,
            "<div class=\"gpu\"><div>{} <small>{}; {} of {} held, {used}, {free} free</small>",
            escaped(&self.name),
            escaped(&self.model),
            readable_bytes(held),
            readable_bytes(self.memory),
        );
        if !self.problem.is_empty() {
            let _ = write!(html, " <b class=\"problem\">{}</b>", escaped(&self.problem));
        }
        html.push_str("</div><div class=\"bar\">");
        for share in &self.shares {
            let label = escaped(&share.label);
            let used = in_use(share.used);
            let class = if share.without_claim { "share lost" } else { "share" };
            let _ = write!(
                html,
                "<div class=\"{class}\" style=\"width:{:.3}%\" title=\"{label}: {} held, {used}\">\
                 <div class=\"used\" style=\"width:{:.3}%\"></div><div class=\"label\">{label}</div></div>",
                percent(share.held, whole),
                readable_bytes(share.held),
                percent(share.used.unwrap_or_default(), share.held),
            );
        }
        html.push_str("</div></div>\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(label: &str) -> String {
        let share = |label: &str, held: u64, used| Share {
            label: label.to_owned(),
            held,
            used,
            without_claim: false,
        };
        let gpu = Gpu {
            name: label.to_owned(),
            model: label.to_owned(),
            memory: 80 << 30,
            used: Some(30 << 30),
            problem: label.to_owned(),
            shares: vec![share(label, 20 << 30, Some(10 << 30)), share("b/c", 40 << 30, None)],
        };
        let node = Node {
            name: label.to_owned(),
            note: label.to_owned(),
            gpus: vec![gpu],
        };
        let page = Page {
            title: label.to_owned(),
            doctor: label.to_owned(),
            nodes: vec![node],
            notes: vec![label.to_owned()],
        };
        page.html()
    }

    #[test]
    fn a_bar_has_a_part_for_each_share_by_its_memory() {
        let html = page("a");
        assert!(html.contains("60Gi of 80Gi held, 30Gi used, 20Gi free"), "{html}");
        let widths = [
            "style=\"width:25.000%\" title=\"a: 20Gi held, 10Gi used\"><div class=\"used\" style=\"width:50.000%\"",
            "style=\"width:50.000%\" title=\"b/c: 40Gi held, use not known\"><div class=\"used\" style=\"width:0.000%\"",
        ];
        for width in widths {
            assert!(html.contains(width), "{html}");
        }
        assert_eq!(percent(1, 0), 0.0);
    }

    #[test]
    fn what_users_write_is_text_and_no_markup() {
        let hostile = "</title></pre><script>alert(1)</script>\" onload='x' \u{1b}[31m &amp;";
        let (plain, html) = (page("a"), page(hostile));
        let tags = |html: &str| html.matches('<').count();
        assert_eq!(tags(&plain), tags(&html));
        assert!(
            !html.contains("<script") && !html.contains('\u{1b}') && !html.contains("onload='"),
            "{html}"
        );
        assert!(
            html.contains("&lt;script&gt;alert(1)&lt;/script&gt;&quot; onload=&#39;x&#39;"),
            "{html}"
        );
    }

    #[test]
    fn nothing_is_loaded_from_elsewhere() {
        let html = page("a");
        for word in ["http:", "https:", "src=", "href=", "url(", "@import", "<script"] {
            assert!(!html.contains(word), "{word}");
        }
    }
}
