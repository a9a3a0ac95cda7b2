//! The known name that a wrong one was probably meant to be.

use strsim::osa_distance;

/// The known names that `name` was probably meant to be: `"a"`, or `"a" or "b"`.
pub(crate) fn similar<'n>(name: &str, known: impl Iterator<Item = &'n str>) -> Option<String> {
    let known: Vec<_> = known.collect();
    let names = match find_mistyped(name, &known) {
        Some(candidate) => vec![candidate],
        // "timeout" may be any of several.
        None => find_longer(name, &known),
    };
    let names: Vec<_> = names.iter().map(|name| format!("{name:?}")).collect();
    (!names.is_empty()).then(|| names.join(" or "))
}

/// The known names of which `name` is a part.
pub(crate) fn find_longer<'n>(name: &str, known: &[&'n str]) -> Vec<&'n str> {
    let has_part = |candidate: &&&str| candidate.split('_').any(|part| part == name);
    known.iter().filter(has_part).copied().collect()
}

/// The known name that `name` is with a few letters wrong.
pub(crate) fn find_mistyped<'n>(name: &str, known: &[&'n str]) -> Option<&'n str> {
    let start: String = name.chars().take(64).collect();
    let nearest = known
        .iter()
        .map(|candidate| (osa_distance(&start, candidate), *candidate))
        .filter(|(distance, candidate)| {
            *distance <= 1 + candidate.chars().count().saturating_sub(1) / 4
        })
        .min_by_key(|(distance, _)| *distance);
    nearest.map(|(_, candidate)| candidate)
}

/// Most names that a message lists.
const LISTED: usize = 16;

/// Number of names that it lists of more.
const NEAREST: usize = 5;

/// The known names, or, if there are many, those that are nearest to `name`.
pub(crate) fn nearest(name: &str, known: &[&str]) -> String {
    if known.len() <= LISTED {
        return known.join(", ");
    }
    let start: String = name.chars().take(64).collect();
    let mut near: Vec<_> = known
        .iter()
        .map(|known| (osa_distance(&start, known), *known))
        .collect();
    near.sort_by_key(|(distance, _)| *distance);
    let near: Vec<_> = near.iter().take(NEAREST).map(|(_, name)| *name).collect();
    let count = known.len();
    format!("{count} keys, the nearest of them {}", near.join(", "))
}

/// "unknown key, did you mean …?"
pub(crate) fn unknown_message(what: &str, similar: Option<String>) -> String {
    match similar {
        Some(similar) => format!("unknown {what}, did you mean {similar}?"),
        None => format!("unknown {what}"),
    }
}
