//! Heads that result from changes: by a person, and by a roll-out in progress. No I/O; tags are arguments.

use crate::model::{
    FORMAT, Failed, Head, MAX_PAST, MAX_TEXT, Mark, Pointer, Revision, Step, Trial,
};

/// A new text of the configuration that a person writes to the store.
#[derive(Clone, Debug)]
pub struct Push {
    /// The text, checked already.
    pub text: String,
    /// Name of the person who writes the text.
    pub author_name: String,
    /// The person's reason for the change, in their words.
    pub message: String,
    /// True if the text is rolled out step by step.
    pub staged: bool,
    /// Time of the change, in seconds since 1970.
    pub at: u64,
}

/// Reason for which a push is not written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PushError {
    /// Another revision is being rolled out.
    #[error(
        "{0} is being rolled out: wait until the roll-out is complete, or end the roll-out with `evenkeel \
         store rollback`"
    )]
    TrialRuns(Pointer),
    /// The text is too long.
    #[error("the text of the configuration has {0} bytes; a store takes at most {MAX_TEXT}")]
    TooLong(usize),
}

/// The head that a balancer goes by and the revision that it runs, as in its report.
pub type HeadInForce = (Mark, Option<Pointer>);

/// Returns the head after a push, and the new revision. `nodes` has the heads that balancers go by: balancers that know
/// more than the store does, because the store was restored from a backup, accept the new head, too; and no number is
/// used twice.
///
/// # Errors
///
/// A [`PushError`], if the push cannot be written.
pub fn push(
    head: Option<&Head>,
    nodes: &[HeadInForce],
    push: Push,
    tag: String,
) -> Result<(Head, Revision), PushError> {
    if let Some(trial) = head.and_then(|head| head.trial.as_ref()) {
        return Err(PushError::TrialRuns(trial.to.clone()));
    }
    if push.text.len() > MAX_TEXT {
        return Err(PushError::TooLong(push.text.len()));
    }
    let mut next = by_a_person(head, nodes, tag);
    let revision = Revision {
        format: FORMAT,
        number: next.next,
        parent: next.current.as_ref().map_or(0, |current| current.number),
        who: push.author_name,
        at: push.at,
        message: push.message,
        text: push.text,
    };
    next.next = next.next.saturating_add(1);
    let to = revision.pointer();
    match push.staged && next.current.is_some() {
        true => {
            next.trial = Some(Trial {
                to,
                step: Step::One,
                nodes: Vec::new(),
            });
        }
        false => next.before = next.current.replace(to),
    }
    Ok((next, revision))
}

/// Returns the head with which a person confirms the store's content after the store has gone back in time.
pub fn confirm(head: &Head, nodes: &[HeadInForce], tag: String) -> Head {
    by_a_person(Some(head), nodes, tag)
}

/// Returns the head with which balancers go back to their previous revision; `None` if that revision is not known.
pub fn go_back(head: &Head, nodes: &[HeadInForce], tag: String) -> Option<Head> {
    let mut next = by_a_person(Some(head), nodes, tag);
    if next.trial.take().is_none() {
        let before = next.before.take()?;
        next.current = Some(before);
    }
    Some(next)
}

/// Returns the next head of a change by a person, with nothing else changed yet.
fn by_a_person(head: Option<&Head>, nodes: &[HeadInForce], tag: String) -> Head {
    let mut next = match head {
        Some(head) => after(head, tag),
        None => Head {
            format: FORMAT,
            change: 1,
            tag,
            past: Vec::new(),
            pushes: 0,
            next: 1,
            current: None,
            before: None,
            trial: None,
            failed: None,
        },
    };
    next.pushes = next.pushes.saturating_add(1);
    next.failed = None;
    for (mark, running) in nodes {
        if !next.follows(mark) {
            next.past.insert(0, mark.tag.clone());
            next.change = next.change.max(mark.change.saturating_add(1));
        }
        let used = running.as_ref().map_or(0, |running| running.number);
        next.next = next.next.max(used.saturating_add(1));
    }
    next.past.truncate(MAX_PAST);
    next
}

/// Returns the head of a roll-out that has come to the step `step`, with the balancers `nodes`; `None` if no roll-out
/// is on.
pub fn advance(head: &Head, step: Step, nodes: Vec<String>, tag: String) -> Option<Head> {
    let mut next = after(head, tag);
    let trial = next.trial.as_mut()?;
    trial.step = step;
    trial.nodes = nodes;
    Some(next)
}

/// Returns the head of a roll-out that has gone well; `None` if no roll-out is on.
pub fn finish_rollout(head: &Head, tag: String) -> Option<Head> {
    let mut next = after(head, tag);
    let trial = next.trial.take()?;
    next.before = next.current.replace(trial.to);
    Some(next)
}

/// Returns the head of a roll-out that was taken back; `None` if no roll-out is on.
pub fn take_back(head: &Head, why: String, at: u64, tag: String) -> Option<Head> {
    let mut next = after(head, tag);
    let to = next.trial.take()?.to;
    next.failed = Some(Failed { to, why, at });
    Some(next)
}

fn after(head: &Head, tag: String) -> Head {
    let mut next = head.clone();
    next.change = head.change.saturating_add(1);
    next.tag = tag;
    next.past.insert(0, head.tag.clone());
    next.past.truncate(MAX_PAST);
    next
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(text: &str, staged: bool) -> Push {
        Push {
            text: text.into(),
            author_name: "anna".into(),
            message: "because".into(),
            staged,
            at: 5,
        }
    }

    #[test]
    fn revisions_are_counted_and_go_back_by_one() {
        let (first, one) = push(None, &[], written("1", true), "a".into()).unwrap();
        assert_eq!((one.number, one.parent, first.pushes), (1, 0, 1));
        assert_eq!(first.trial, None, "there is nothing to compare it with");
        let (second, two) = push(Some(&first), &[], written("2", false), "b".into()).unwrap();
        assert_eq!((two.number, two.parent), (2, 1));
        assert_eq!(second.before, Some(one.pointer()));
        assert!(second.follows(&first.mark()));
        let back = go_back(&second, &[], "c".into()).unwrap();
        assert_eq!(back.current, Some(one.pointer()));
        assert_eq!(back.next, 3);
        assert_eq!(go_back(&back, &[], "d".into()), None);
    }

    #[test]
    fn a_roll_out_ends_well_or_is_taken_back() {
        let (first, one) = push(None, &[], written("1", false), "a".into()).unwrap();
        let (trial, two) = push(Some(&first), &[], written("2", true), "b".into()).unwrap();
        assert_eq!(trial.current, Some(one.pointer()));
        let refused = push(Some(&trial), &[], written("3", true), "c".into());
        assert_eq!(refused, Err(PushError::TrialRuns(two.pointer())));
        let some = advance(&trial, Step::Share, vec!["x".into()], "c".into()).unwrap();
        assert_eq!(some.target_of("x"), Some(&two.pointer()));
        assert_eq!(some.target_of("y"), Some(&one.pointer()));
        let good = finish_rollout(&some, "d".into()).unwrap();
        assert_eq!((good.current, good.trial), (Some(two.pointer()), None));
        let bad = take_back(&some, "slow".into(), 9, "d".into()).unwrap();
        assert_eq!(
            (bad.current.clone(), bad.trial.clone()),
            (Some(one.pointer()), None)
        );
        assert_eq!(bad.failed.as_ref().unwrap().why, "slow");
        assert_eq!(bad.pushes, trial.pushes, "no person did that");
        // A person may end it, too.
        let ended = go_back(&some, &[], "e".into()).unwrap();
        assert_eq!((ended.current, ended.trial), (Some(one.pointer()), None));
        for none in [
            advance(&first, Step::All, Vec::new(), "x".into()),
            finish_rollout(&first, "x".into()),
            take_back(&first, String::new(), 0, "x".into()),
        ] {
            assert_eq!(none, None);
        }
    }

    #[test]
    fn a_text_has_a_bound() {
        let long = push(
            None,
            &[],
            written(&"x".repeat(MAX_TEXT + 1), false),
            "a".into(),
        );
        assert_eq!(long, Err(PushError::TooLong(MAX_TEXT + 1)));
    }
}
