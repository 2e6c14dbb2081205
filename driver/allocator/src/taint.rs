//! Device taints and tolerations.

use crate::model::{DeviceTaintRule, SliceSpec, Taint, Toleration};

/// Returns the first taint that excludes a request with these tolerations. Only the effects NoSchedule and NoExecute
/// exclude.
pub(crate) fn untolerated<'a>(
    taints: impl IntoIterator<Item = &'a Taint>,
    tolerations: &[Toleration],
) -> Option<&'a Taint> {
    taints.into_iter().find(|taint| {
        matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute")
            && !tolerations.iter().any(|toleration| tolerates(toleration, taint))
    })
}

/// An empty field of a toleration matches anything. An exception is the value, which is ignored only with `Exists`.
fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let open = |ours: &str, theirs: &str| ours.is_empty() || ours == theirs;
    open(&toleration.effect, &taint.effect)
        && open(&toleration.key, &taint.key)
        && match toleration.operator.as_str() {
            "" | "Equal" => toleration.value == taint.value,
            "Exists" => true,
            _ => false,
        }
}

/// Returns true if a rule taints a device. A rule without a selector taints none.
pub(crate) fn applies(rule: &DeviceTaintRule, slice: &SliceSpec, device: &str) -> bool {
    let open = |wanted: &Option<String>, is: &str| wanted.as_deref().is_none_or(|wanted| wanted == is);
    rule.spec.device_selector.as_ref().is_some_and(|selector| {
        open(&selector.driver, &slice.driver)
            && open(&selector.pool, &slice.pool.name)
            && open(&selector.device, device)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taint(effect: &str) -> Taint {
        Taint {
            key: "health".into(),
            value: "bad".into(),
            effect: effect.into(),
            ..Taint::default()
        }
    }

    fn toleration(text: &str) -> Toleration {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn a_toleration_matches_what_it_names() {
        for (text, expected) in [
            (r#"{"key":"health","operator":"Equal","value":"bad"}"#, true),
            (r#"{"key":"health","value":"bad"}"#, true),
            (r#"{"key":"health","operator":"Equal"}"#, false),
            (r#"{"operator":"Exists"}"#, true),
            (r#"{"operator":"Exists","effect":"NoExecute"}"#, false),
            (r#"{"key":"other","operator":"Exists"}"#, false),
            (r#"{"key":"health","operator":"Is","value":"bad"}"#, false),
        ] {
            let taint = taint("NoSchedule");
            assert_eq!(untolerated([&taint], &[toleration(text)]).is_none(), expected, "{text}");
        }
    }

    #[test]
    fn only_known_effects_keep_away() {
        for effect in ["None", "", "Future"] {
            assert!(untolerated([&taint(effect)], &[]).is_none(), "{effect}");
        }
        assert!(untolerated([&taint("NoExecute")], &[]).is_some());
    }

    #[test]
    fn a_rule_taints_what_its_selector_names_and_nothing_without_one() {
        let slice: SliceSpec = serde_json::from_str(r#"{"driver":"a","pool":{"name":"p"}}"#).unwrap();
        for (selector, expected) in [
            (r#"null"#, false),
            (r#"{}"#, true),
            (r#"{"driver":"a","pool":"p","device":"d"}"#, true),
            (r#"{"device":"e"}"#, false),
            (r#"{"driver":"b"}"#, false),
        ] {
            let rule = format!(r#"{{"spec":{{"deviceSelector":{selector}}}}}"#);
            assert_eq!(
                applies(&serde_json::from_str(&rule).unwrap(), &slice, "d"),
                expected,
                "{selector}"
            );
        }
    }
}
