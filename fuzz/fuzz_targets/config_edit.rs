//! Edits of a configuration's text, and images of rules, as the admin API gets them: whatever text and edits say,
//! what comes out is a document that says what was set, or a reason.

#![no_main]

use evenkeel_config::edit::{self, Edit};
use evenkeel_config::image::{Import, Plan};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(data) = std::str::from_utf8(data) else {
        return;
    };
    let mut parts = data.split('\0');
    let mut next = || parts.next().unwrap_or_default();
    let (text, to) = (next(), next().to_owned());
    let (Ok(path), Ok(other)) = (edit::path_of(next()), edit::path_of(next())) else {
        return;
    };
    let value = edit::value_of(next());
    let import = Import {
        text: next().to_owned(),
        rename: [(next().to_owned(), to.clone())].into(),
        replace: vec![next().to_owned()],
    };
    import_twice(text, &import);
    import_twice(
        text,
        &Import {
            text: import.text,
            ..Import::default()
        },
    );
    let edits = [
        Edit::Set {
            path: path.clone(),
            value: value.clone(),
        },
        Edit::Remove { path: other },
        Edit::Rename {
            path: path.clone(),
            to,
        },
    ];
    for count in 0..=edits.len() {
        let Ok(edited) = edit::apply_edits(text, edits.get(..count).unwrap_or_default()) else {
            break;
        };
        let before = edit::values(text).expect("it could be edited");
        let after = edit::values(&edited).expect("what comes out is a document");
        let _ = edit::list_changes(&before, &after);
        if count == 0 {
            assert_eq!(edited, text);
        }
        // Masks hide nothing but secrets, and are known again.
        assert_eq!(
            edit::has_masked_secret(&edit::mask_secrets(&edited)),
            edit::mask_secrets(&edited) != edited || edit::has_masked_secret(&edited)
        );
    }
});

/// An import that is possible is complete: a second one changes nothing.
fn import_twice(text: &str, import: &Import) {
    let plan = |text: &str| Plan::new(&[("file".into(), text.into())], import);
    let first = plan(text);
    if first.problems.is_empty() {
        let second = plan(&first.text);
        assert_eq!(first.text, second.text);
        assert!(second.outcome.added.is_empty(), "{:?}", second.outcome);
    }
}
