//! Decides when an event is written: at once if its text is new, again after a while, and never in a flood.
//!
//! Time is an argument. A pod's first text is due at once; the message that GPUs have room only after it has been true
//! for [`ROOM_HOLD`]. A changed text is due no earlier than [`CHANGE_HOLD`] after the last one, because in a busy
//! cluster the free amounts change with every pod. An unchanged text is repeated after `repeat_after`. A decision of
//! the controller is reported once ([`Notices::add_decision`]), and a state that a decider finds repeatedly is reported
//! once in [`SAY_AGAIN`]: deciders do not remember what was reported. A token bucket limits all of it.

mod decided;
mod subject;

use std::collections::HashMap;
use std::time::Duration;

use vgpu_planner::About;
use vgpu_planner::explain::{Message, MessageKind, TEXT_MAX, cut};

use decided::Decided;
pub use decided::{Added, MAX_DECISIONS};
pub use subject::{CHANGE_HOLD, Now, ROOM_HOLD, Topic};
use subject::{RETRY_AFTER, Said, Subject};

/// How long after its report a state that lasts is reported again, if it is found again. The API server drops events
/// after an hour.
pub const SAY_AGAIN: Duration = Duration::from_secs(1800);

/// An event to write, for the `count`th time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    pub topic: Topic,
    pub message: Message,
    /// See [`Reported`].
    pub lasting: Option<String>,
    pub count: u32,
}

/// A decision to report once, as an event on an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reported {
    pub topic: Topic,
    pub message: Message,
    /// `None` for a single event. A lasting state has a key made from its object and reason: whatever its text is, it
    /// is reported once in [`SAY_AGAIN`].
    pub lasting: Option<String>,
}

impl Reported {
    /// `reason`: the event's. `lasting`: see the field.
    pub fn new(about: About, reason: &'static str, text: &impl std::fmt::Display, lasting: Option<String>) -> Self {
        Self {
            topic: Topic {
                about,
                decided: Some(reason),
            },
            message: Message {
                kind: MessageKind::Decided(reason),
                text: cut(&text.to_string(), TEXT_MAX),
            },
            lasting,
        }
    }
}

#[derive(Debug)]
pub struct Notices {
    repeat_after: Duration,
    per_second: u32,
    tokens: f64,
    refilled: Now,
    /// The texts of pods that wait.
    explained: HashMap<Topic, Subject>,
    decided: Decided,
    /// Lasting states, and when each was reported. The token bucket limits their number.
    lasting: HashMap<(Topic, String), Now>,
}

impl Notices {
    pub fn new(repeat_after: Duration, per_second: u32) -> Self {
        let tokens = f64::from(per_second);
        Self {
            repeat_after,
            per_second,
            tokens,
            refilled: Now::ZERO,
            explained: HashMap::new(),
            decided: Decided::default(),
            lasting: HashMap::new(),
        }
    }

    /// Replaces the texts of all pods that wait; a pod that is not among them is dropped.
    pub fn observe(&mut self, messages: Vec<(About, Message)>, now: Now) {
        let mut before = std::mem::take(&mut self.explained);
        for (about, message) in messages {
            let topic = Topic { about, decided: None };
            let pod = match before.remove(&topic) {
                Some(mut pod) => {
                    if pod.wanted != message {
                        // If the room moved from one GPU to another, it is still room.
                        if pod.wanted.kind != message.kind {
                            pod.since = now;
                        }
                        pod.wanted = message;
                    }
                    pod
                }
                None => Subject::new(message, now),
            };
            self.explained.insert(topic, pod);
        }
    }

    /// Adds a decision, to be reported once. It replaces one of its topic that was not reported yet.
    pub fn add_decision(&mut self, reported: Reported, now: Now) -> Added {
        let Reported {
            topic,
            message,
            lasting,
        } = reported;
        let state = lasting.map(|key| (topic.clone(), key));
        let said = state.as_ref().and_then(|state| self.lasting.get(state));
        let is_known = said.is_some_and(|said| now < *said + SAY_AGAIN);
        let lasting = state.map(|(_, key)| key);
        if is_known {
            // The decision that was to replace it is outdated. If it still applies, it is found again.
            if let Some(known) = self.decided.get_mut(&topic)
                && let Some(said) = known.said.as_ref().filter(|said| said.lasting == lasting)
            {
                (known.wanted, known.lasting) = (said.message.clone(), lasting);
            }
            return Added::Known;
        }
        let Some(known) = self.decided.get_mut(&topic) else {
            let subject = Subject {
                lasting,
                ..Subject::new(message, now)
            };
            return self.decided.insert(topic, subject);
        };
        let is_new = known.is_said() && known.wanted != message;
        known.wanted = message;
        known.lasting = lasting;
        if is_new { Added::New } else { Added::Known }
    }

    /// Returns the notices to write now. They count as written unless [`Notices::failed`] is called.
    pub fn due(&mut self, now: Now) -> Vec<Notice> {
        let elapsed = now.saturating_sub(self.refilled).as_secs_f64();
        self.refilled = now;
        self.tokens = (self.tokens + elapsed * f64::from(self.per_second)).min(f64::from(self.per_second));
        let repeat_after = self.repeat_after;
        self.decided.remove_over(now);
        self.lasting.retain(|_, said| now < *said + SAY_AGAIN);
        let subjects = self.explained.iter_mut().chain(self.decided.iter_mut());
        let mut due: Vec<_> = subjects
            .filter(|(_, subject)| subject.due_at(repeat_after).is_some_and(|at| at <= now))
            .collect();
        // The notice that has waited longest goes first; the topic makes the order definite.
        due.sort_by(|(a, x), (b, y)| (x.due_at(repeat_after), *a).cmp(&(y.due_at(repeat_after), *b)));
        due.truncate(self.tokens as usize);
        self.tokens -= due.len() as f64;
        due.into_iter()
            .map(|(topic, pod)| {
                let count = match &pod.said {
                    Some(said) if said.message == pod.wanted => said.count.saturating_add(1),
                    _ => 1,
                };
                pod.said = Some(Said {
                    message: pod.wanted.clone(),
                    lasting: pod.lasting.clone(),
                    at: now,
                    count,
                });
                if let Some(key) = &pod.lasting {
                    self.lasting.insert((topic.clone(), key.clone()), now);
                }
                Notice {
                    topic: topic.clone(),
                    message: pod.wanted.clone(),
                    lasting: pod.lasting.clone(),
                    count,
                }
            })
            .collect()
    }

    /// A notice could not be delivered: it is due again after a while.
    pub fn failed(&mut self, notice: &Notice, now: Now) {
        if let Some(key) = &notice.lasting {
            self.lasting.remove(&(notice.topic.clone(), key.clone()));
        }
        let subject = match notice.topic.decided {
            Some(_) => self.decided.get_mut(&notice.topic),
            None => self.explained.get_mut(&notice.topic),
        };
        if let Some(pod) = subject {
            pod.not_before = now + RETRY_AFTER;
            match &mut pod.said {
                Some(said) if notice.count > 1 => said.count = notice.count - 1,
                said => *said = None,
            }
            if let Some(said) = &mut pod.said {
                said.at = now.saturating_sub(self.repeat_after);
            }
        }
    }

    /// When [`Notices::due`] will next return something.
    pub fn next(&self) -> Option<Now> {
        let subjects = self.explained.values().chain(self.decided.values());
        let next = subjects.filter_map(|subject| subject.due_at(self.repeat_after)).min()?;
        // With an empty bucket nothing is due before the next token.
        let missing = (1.0 - self.tokens).max(0.0) / f64::from(self.per_second);
        Some(next.max(self.refilled + Duration::from_secs_f64(missing)))
    }

    /// The number of pods that wait.
    pub fn len(&self) -> usize {
        self.explained.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use vgpu_planner::Object;

    use super::*;

    fn about(name: &str, object: Object) -> About {
        About {
            object,
            namespace: "default".into(),
            name: name.into(),
            uid: format!("uid-{name}"),
        }
    }

    fn pod(name: &str, kind: MessageKind, text: &str) -> (About, Message) {
        let text = text.into();
        (about(name, Object::Pod), Message { kind, text })
    }

    fn seconds(s: u64) -> Now {
        Now::from_secs(s)
    }

    fn notices() -> Notices {
        Notices::new(seconds(300), 10)
    }

    fn texts(notices: Vec<Notice>) -> Vec<String> {
        notices.into_iter().map(|n| n.message.text).collect()
    }

    #[test]
    fn a_shortage_is_said_at_once_and_again_only_after_minutes() {
        let mut notices = notices();
        for now in 0..650 {
            notices.observe(vec![pod("a", MessageKind::Waiting, "full")], seconds(now));
            let due = notices.due(seconds(now));
            match now {
                0 => assert_eq!(due[0].count, 1),
                300 => assert_eq!(due[0].count, 2),
                600 => assert_eq!(due[0].count, 3),
                _ => assert_eq!(due, vec![], "second {now}"),
            }
        }
    }

    #[test]
    fn a_changed_text_waits_until_the_last_one_was_seen() {
        let mut notices = notices();
        let mut said = vec![];
        for now in 0..60 {
            notices.observe(
                vec![pod("a", MessageKind::Waiting, &format!("free {now}"))],
                seconds(now),
            );
            said.extend(texts(notices.due(seconds(now))));
        }
        assert_eq!(said, ["free 0", "free 15", "free 30", "free 45"]);
    }

    #[test]
    fn room_is_said_only_when_it_lasts() {
        let mut notices = notices();
        for now in 0..9 {
            notices.observe(
                vec![pod("a", MessageKind::Room, &format!("gpu {now} has room"))],
                seconds(now),
            );
            assert_eq!(notices.due(seconds(now)), vec![]);
        }
        assert_eq!(notices.next(), Some(seconds(10)));
        assert_eq!(texts(notices.due(seconds(10))), ["gpu 8 has room"]);
    }

    /// The claim may be created a moment after its pod.
    #[test]
    fn a_missing_claim_is_said_only_when_it_stays_missing() {
        let mut notices = notices();
        notices.observe(vec![pod("a", MessageKind::NoClaim, "no claim")], seconds(0));
        assert_eq!(notices.due(seconds(9)), vec![]);
        assert_eq!(texts(notices.due(seconds(10))), ["no claim"]);
    }

    #[test]
    fn a_pod_that_runs_gets_no_more() {
        let mut notices = notices();
        notices.observe(vec![pod("a", MessageKind::Waiting, "full")], seconds(0));
        notices.observe(vec![], seconds(1));
        assert_eq!((notices.due(seconds(1)), notices.next()), (vec![], None));
        assert!(notices.is_empty());
    }

    #[test]
    fn a_pod_made_anew_under_its_name_is_another_pod() {
        let mut notices = notices();
        notices.observe(vec![pod("a", MessageKind::Waiting, "full")], seconds(0));
        assert_eq!(notices.due(seconds(0)).len(), 1);
        let (mut about, message) = pod("a", MessageKind::Waiting, "full");
        about.uid = "another".into();
        notices.observe(vec![(about, message)], seconds(1));
        assert_eq!(notices.due(seconds(1)).len(), 1);
    }

    #[test]
    fn a_flood_is_spread_out_and_nobody_is_forgotten() {
        let mut notices = notices();
        let pods: Vec<_> = (0..100)
            .map(|i| pod(&format!("p{i:03}"), MessageKind::Waiting, "full"))
            .collect();
        notices.observe(pods, seconds(0));
        let mut said = vec![];
        for now in 0..20 {
            let due = notices.due(seconds(now));
            assert!(due.len() <= 10, "second {now}: {}", due.len());
            said.extend(due.into_iter().map(|n| n.topic.about.name));
        }
        said.sort();
        said.dedup();
        assert_eq!(said.len(), 100);
    }

    #[test]
    fn what_failed_is_tried_again_soon_with_the_same_count() {
        let mut notices = notices();
        notices.observe(vec![pod("a", MessageKind::Waiting, "full")], seconds(0));
        let first = notices.due(seconds(0)).remove(0);
        notices.failed(&first, seconds(0));
        assert_eq!(notices.due(seconds(4)), vec![]);
        assert_eq!(notices.due(seconds(5)), vec![first]);

        let second = notices.due(seconds(305)).remove(0);
        assert_eq!(second.count, 2);
        notices.failed(&second, seconds(305));
        assert_eq!(notices.due(seconds(310)), vec![second]);
    }

    fn topic(name: &str, object: Object) -> Topic {
        Topic {
            about: about(name, object),
            decided: Some("HoldTimeout"),
        }
    }

    fn decided(topic: Topic, text: &str) -> Reported {
        let message = Message {
            kind: MessageKind::Decided("HoldTimeout"),
            text: text.into(),
        };
        Reported {
            topic,
            message,
            lasting: None,
        }
    }

    fn lasting(key: &str, found: Reported) -> Reported {
        Reported {
            lasting: Some(key.into()),
            ..found
        }
    }

    #[test]
    fn a_state_that_is_found_again_and_again_is_told_once_in_half_an_hour() {
        let mut notices = notices();
        let mut said = vec![];
        for now in 0..=1800 {
            let found = decided(topic("a", Object::Pod), &format!("refused at {now}"));
            notices.add_decision(lasting("template-1", found), seconds(now));
            said.extend(texts(notices.due(seconds(now))));
        }
        assert_eq!(said, ["refused at 0", "refused at 1800"]);
        let other = decided(topic("a", Object::Pod), "refused too");
        notices.add_decision(lasting("template-2", other), seconds(1801));
        assert_eq!(texts(notices.due(seconds(1900))), ["refused too"]);
    }

    /// The newest decision is kept: the replaced one is found again if it still applies.
    #[test]
    fn a_state_that_was_replaced_or_not_delivered_is_told_when_it_is_found_again() {
        let mut notices = notices();
        let find = |notices: &mut Notices, key: &str, at| {
            notices.add_decision(lasting(key, decided(topic("a", Object::Pod), key)), seconds(at))
        };
        assert_eq!(find(&mut notices, "full", 0), Added::New);
        assert_eq!(find(&mut notices, "behind", 0), Added::Known);
        let due = notices.due(seconds(0));
        assert_eq!(texts(due.clone()), ["behind"]);
        notices.failed(&due[0], seconds(0));
        find(&mut notices, "full", 1);
        assert_eq!(texts(notices.due(seconds(5))), ["full"]);
        assert_eq!(find(&mut notices, "behind", 6), Added::New);
        assert_eq!(find(&mut notices, "behind", 6), Added::Known);
        assert_eq!(texts(notices.due(seconds(20))), ["behind"]);
    }

    /// A delivery may take longer than its decision is kept.
    #[test]
    fn a_state_whose_delivery_fails_late_is_told_when_it_is_found_again() {
        let mut notices = notices();
        let full = || lasting("full", decided(topic("a", Object::Pod), "full"));
        notices.add_decision(full(), seconds(0));
        let due = notices.due(seconds(0));
        assert_eq!(notices.due(seconds(20)), vec![]);
        notices.failed(&due[0], seconds(30));
        assert_eq!(notices.add_decision(full(), seconds(31)), Added::New);
        assert_eq!(texts(notices.due(seconds(31))), ["full"]);
    }

    #[test]
    fn a_state_that_is_back_before_another_was_told_is_the_last_that_is_told() {
        let mut notices = notices();
        let mut said = vec![];
        for now in 0..60 {
            let key = if now == 1 { "behind" } else { "full" };
            let found = decided(topic("a", Object::Pod), &format!("{key} at {now}"));
            notices.add_decision(lasting(key, found), seconds(now));
            said.extend(texts(notices.due(seconds(now))));
        }
        assert_eq!(said, ["full at 0"]);
        let behind = decided(topic("a", Object::Pod), "behind at 60");
        assert_eq!(notices.add_decision(lasting("behind", behind), seconds(60)), Added::New);
        assert_eq!(texts(notices.due(seconds(60))), ["behind at 60"]);
    }

    #[test]
    fn states_that_find_no_room_are_not_lost_and_displace_nothing() {
        let mut notices = notices();
        let find = |notices: &mut Notices, number: usize, at| {
            let found = decided(topic(&number.to_string(), Object::Pod), "waits");
            notices.add_decision(lasting("", found), seconds(at))
        };
        let pods = MAX_DECISIONS + 5;
        let added: Vec<Added> = (0..pods).map(|number| find(&mut notices, number, 0)).collect();
        assert_eq!(
            added.iter().filter(|added| **added == Added::New).count(),
            MAX_DECISIONS
        );
        assert!(!added.contains(&Added::Dropped));
        let mut said = std::collections::BTreeSet::new();
        for now in 0..200 {
            said.extend(
                notices
                    .due(seconds(now))
                    .into_iter()
                    .map(|notice| notice.topic.about.name),
            );
            for number in 0..pods {
                find(&mut notices, number, now);
            }
        }
        assert_eq!(said.len(), pods);
    }

    #[test]
    fn two_lasting_states_of_an_object_that_are_found_together_are_both_told() {
        let mut notices = notices();
        let mut said = vec![];
        for now in 0..600 {
            for of in ["template-1", "template-2"] {
                let found = decided(topic("a", Object::Pod), &format!("{of} is refused"));
                assert_ne!(notices.add_decision(lasting(of, found), seconds(now)), Added::Dropped);
            }
            said.extend(texts(notices.due(seconds(now))));
        }
        said.sort();
        assert_eq!(said, ["template-1 is refused", "template-2 is refused"]);
    }

    #[test]
    fn a_decision_is_told_once_and_beside_an_explanation() {
        let mut notices = notices();
        notices.observe(vec![pod("a", MessageKind::Waiting, "full")], seconds(0));
        assert_eq!(
            notices.add_decision(decided(topic("a", Object::Pod), "too slow"), seconds(0)),
            Added::New
        );
        let mut said = texts(notices.due(seconds(0)));
        said.sort();
        assert_eq!(said, ["full", "too slow"]);
        notices.observe(vec![], seconds(1));
        assert_eq!(notices.due(seconds(1)), vec![]);
        assert_eq!((notices.next(), notices.is_empty()), (None, true));
        // Another text about the same object waits for `CHANGE_HOLD`; the same text is not repeated so soon.
        notices.add_decision(decided(topic("a", Object::Pod), "too slow"), seconds(2));
        notices.add_decision(decided(topic("b", Object::Claim), "cleared"), seconds(2));
        assert_eq!(texts(notices.due(seconds(2))), ["cleared"]);
        notices.add_decision(decided(topic("b", Object::Claim), "given"), seconds(3));
        assert_eq!(notices.due(seconds(16)), vec![]);
        assert_eq!(texts(notices.due(seconds(17))), ["given"]);
        notices.add_decision(decided(topic("a", Object::Pod), "too slow"), seconds(60));
        assert_eq!(texts(notices.due(seconds(60))), ["too slow"], "it happened again");
    }

    #[test]
    fn a_decision_that_could_not_be_told_is_told_later() {
        let mut notices = notices();
        notices.add_decision(decided(topic("a", Object::Claim), "cleared"), seconds(0));
        let due = notices.due(seconds(0));
        notices.failed(&due[0], seconds(1));
        assert_eq!(notices.due(seconds(5)), vec![]);
        assert_eq!(texts(notices.due(seconds(6))), ["cleared"]);
    }

    #[test]
    fn decisions_without_end_do_not_take_memory_without_end() {
        let mut notices = notices();
        for number in 0..MAX_DECISIONS {
            assert_eq!(
                notices.add_decision(decided(topic(&number.to_string(), Object::Claim), "x"), seconds(0)),
                Added::New
            );
        }
        assert_eq!(
            notices.add_decision(decided(topic("more", Object::Claim), "x"), seconds(0)),
            Added::Dropped
        );
        assert_eq!(
            notices.add_decision(decided(topic("0", Object::Claim), "y"), seconds(0)),
            Added::Known
        );
    }

    #[test]
    fn a_flood_of_one_namespace_silences_no_other() {
        let mut notices = notices();
        for number in 0..MAX_DECISIONS {
            notices.add_decision(decided(topic(&number.to_string(), Object::Claim), "x"), seconds(0));
        }
        let of_others = |name: &str| {
            let mut topic = topic(name, Object::Pod);
            topic.about.namespace = "others".into();
            topic
        };
        assert_eq!(notices.due(seconds(0)).len(), 10);
        assert_eq!(
            notices.add_decision(decided(of_others("a"), "theirs"), seconds(0)),
            Added::New,
            "in the place of one that was said"
        );
        for name in ["b", "c", "d", "e", "f", "g", "h", "i", "j"] {
            assert_eq!(
                notices.add_decision(decided(of_others(name), "theirs"), seconds(1)),
                Added::New
            );
        }
        assert_eq!(
            notices.add_decision(decided(of_others("k"), "theirs"), seconds(1)),
            Added::Dropped,
            "one of the flood is lost"
        );
        assert_eq!(notices.decided.values().count(), MAX_DECISIONS);
        let theirs = notices
            .decided
            .iter_mut()
            .filter(|(known, _)| known.about.namespace == "others");
        assert_eq!(theirs.count(), 11);
        assert_eq!(
            notices.add_decision(decided(topic("more", Object::Claim), "x"), seconds(1)),
            Added::Dropped
        );
        // Delivered decisions of the flood make room for its others.
        let of_flood = |notice: &&Notice| notice.topic.about.namespace != "others";
        let said = notices.due(seconds(2)).iter().filter(of_flood).count();
        assert!(said > 0, "nothing of the flood was said");
        for number in 0..said {
            let more = topic(&format!("more-{number}"), Object::Claim);
            assert_eq!(
                notices.add_decision(decided(more, "x"), seconds(2)),
                Added::New,
                "{number}"
            );
        }
        assert_eq!(
            notices.add_decision(decided(topic("more", Object::Claim), "x"), seconds(2)),
            Added::Dropped
        );
        assert_eq!(notices.decided.values().count(), MAX_DECISIONS);
    }

    #[test]
    fn decisions_for_several_reasons_stand_beside_each_other() {
        let mut notices = notices();
        let refused = Topic {
            decided: Some("WriteRefused"),
            ..topic("a", Object::Claim)
        };
        notices.add_decision(decided(topic("a", Object::Claim), "too slow"), seconds(0));
        notices.add_decision(decided(refused, "refused"), seconds(0));
        let mut said = texts(notices.due(seconds(0)));
        said.sort();
        assert_eq!(said, ["refused", "too slow"]);
    }
}
