//! Decides when an event is written: at once if its text is new, again after a while, and never in a flood.
//!
//! Time is an argument. A pod's first text is due at once; that GPUs have room, only after it has been true for
//! [`ROOM_HOLD`]. A changed text is due no earlier than [`CHANGE_HOLD`] after the last one, because in a busy cluster
//! what is free changes with every pod. An unchanged text is repeated after `repeat_after`. A decision of the
//! controller is reported once ([`Notices::add_decision`]). A token bucket limits all of it.

mod decided;
mod subject;

use std::collections::HashMap;
use std::time::Duration;

use vgpu_planner::About;

use crate::pending::Message;
use decided::Decided;
pub use decided::MAX_DECISIONS;
pub use subject::{CHANGE_HOLD, Now, ROOM_HOLD, Topic};
use subject::{RETRY_AFTER, Said, Subject};

/// An event to write, for the `count`th time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    pub topic: Topic,
    pub message: Message,
    pub count: u32,
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
                        // Room that moved from one GPU to another is still room.
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

    /// Adds a decision, to be reported once. Returns false if the queue was full and a decision was dropped.
    pub fn add_decision(&mut self, topic: Topic, message: Message, now: Now) -> bool {
        if let Some(known) = self.decided.get_mut(&topic) {
            known.wanted = message;
            return true;
        }
        self.decided.insert(topic, Subject::new(message, now))
    }

    /// Returns the notices to write now. They count as written unless [`Notices::failed`] is called.
    pub fn due(&mut self, now: Now) -> Vec<Notice> {
        let elapsed = now.saturating_sub(self.refilled).as_secs_f64();
        self.refilled = now;
        self.tokens = (self.tokens + elapsed * f64::from(self.per_second)).min(f64::from(self.per_second));
        let repeat_after = self.repeat_after;
        self.decided.remove_over(now);
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
                    at: now,
                    count,
                });
                Notice {
                    topic: topic.clone(),
                    message: pod.wanted.clone(),
                    count,
                }
            })
            .collect()
    }

    /// A notice could not be delivered: it is due again after a while.
    pub fn failed(&mut self, notice: &Notice, now: Now) {
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

    use crate::pending::MessageKind;

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

    fn decision(text: &str) -> Message {
        Message {
            kind: MessageKind::Decided("HoldTimeout"),
            text: text.into(),
        }
    }

    #[test]
    fn a_decision_is_told_once_and_beside_an_explanation() {
        let mut notices = notices();
        notices.observe(vec![pod("a", MessageKind::Waiting, "full")], seconds(0));
        assert!(notices.add_decision(topic("a", Object::Pod), decision("too slow"), seconds(0)));
        let mut said = texts(notices.due(seconds(0)));
        said.sort();
        assert_eq!(said, ["full", "too slow"]);
        notices.observe(vec![], seconds(1));
        assert_eq!(notices.due(seconds(1)), vec![]);
        assert_eq!((notices.next(), notices.is_empty()), (None, true));
        // Another one waits until the first was seen; the same one in between is said already.
        notices.add_decision(topic("a", Object::Pod), decision("too slow"), seconds(2));
        notices.add_decision(topic("b", Object::Claim), decision("cleared"), seconds(2));
        assert_eq!(texts(notices.due(seconds(2))), ["cleared"]);
        notices.add_decision(topic("b", Object::Claim), decision("given"), seconds(3));
        assert_eq!(notices.due(seconds(16)), vec![]);
        assert_eq!(texts(notices.due(seconds(17))), ["given"]);
        notices.add_decision(topic("a", Object::Pod), decision("too slow"), seconds(60));
        assert_eq!(texts(notices.due(seconds(60))), ["too slow"], "it happened again");
    }

    #[test]
    fn a_decision_that_could_not_be_told_is_told_later() {
        let mut notices = notices();
        notices.add_decision(topic("a", Object::Claim), decision("cleared"), seconds(0));
        let due = notices.due(seconds(0));
        notices.failed(&due[0], seconds(1));
        assert_eq!(notices.due(seconds(5)), vec![]);
        assert_eq!(texts(notices.due(seconds(6))), ["cleared"]);
    }

    #[test]
    fn decisions_without_end_do_not_take_memory_without_end() {
        let mut notices = notices();
        for number in 0..MAX_DECISIONS {
            assert!(notices.add_decision(topic(&number.to_string(), Object::Claim), decision("x"), seconds(0)));
        }
        assert!(!notices.add_decision(topic("more", Object::Claim), decision("x"), seconds(0)));
        assert!(notices.add_decision(topic("0", Object::Claim), decision("y"), seconds(0)));
    }

    #[test]
    fn a_flood_of_one_namespace_silences_no_other() {
        let mut notices = notices();
        for number in 0..MAX_DECISIONS {
            notices.add_decision(topic(&number.to_string(), Object::Claim), decision("x"), seconds(0));
        }
        let of_others = |name: &str| {
            let mut topic = topic(name, Object::Pod);
            topic.about.namespace = "others".into();
            topic
        };
        assert_eq!(notices.due(seconds(0)).len(), 10);
        assert!(
            notices.add_decision(of_others("a"), decision("theirs"), seconds(0)),
            "in the place of one that was said"
        );
        for name in ["b", "c", "d", "e", "f", "g", "h", "i", "j"] {
            assert!(notices.add_decision(of_others(name), decision("theirs"), seconds(1)));
        }
        assert!(
            !notices.add_decision(of_others("k"), decision("theirs"), seconds(1)),
            "one of the flood is lost"
        );
        assert_eq!(notices.decided.values().count(), MAX_DECISIONS);
        let theirs = notices
            .decided
            .iter_mut()
            .filter(|(known, _)| known.about.namespace == "others");
        assert_eq!(theirs.count(), 11);
        assert!(!notices.add_decision(topic("more", Object::Claim), decision("x"), seconds(1)));
        // What the flood has said makes room for what it has not.
        let of_flood = |notice: &&Notice| notice.topic.about.namespace != "others";
        let said = notices.due(seconds(2)).iter().filter(of_flood).count();
        assert!(said > 0, "nothing of the flood was said");
        for number in 0..said {
            let more = topic(&format!("more-{number}"), Object::Claim);
            assert!(notices.add_decision(more, decision("x"), seconds(2)), "{number}");
        }
        assert!(!notices.add_decision(topic("more", Object::Claim), decision("x"), seconds(2)));
        assert_eq!(notices.decided.values().count(), MAX_DECISIONS);
    }

    #[test]
    fn decisions_for_several_reasons_stand_beside_each_other() {
        let mut notices = notices();
        let refused = Topic {
            decided: Some("WriteRefused"),
            ..topic("a", Object::Claim)
        };
        notices.add_decision(topic("a", Object::Claim), decision("too slow"), seconds(0));
        notices.add_decision(refused, decision("refused"), seconds(0));
        let mut said = texts(notices.due(seconds(0)));
        said.sort();
        assert_eq!(said, ["refused", "too slow"]);
    }
}
