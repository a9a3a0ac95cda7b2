//! Elements of a list on one or more lines, with the comments beside them.

use toml_edit::{Array, Decor};

use super::items::text_of;

/// Removes an element; comments of the lines around it stay.
pub(super) fn take_element(array: &mut Array, index: usize) {
    if index >= array.len() {
        return;
    }
    let gone = array.remove(index);
    let prefix = text_of(gone.decor().prefix()).to_owned();
    let suffix = text_of(gone.decor().suffix()).to_owned();
    // The end of the line before it, with its comment, and the beginning of the line behind it.
    let before = prefix.split_once('\n').map(|(line, _)| line.to_owned());
    let joined = |behind: &str| match (&before, behind.split_once('\n')) {
        (Some(before), Some((_, lines))) => format!("{before}\n{lines}"),
        (Some(before), None) => format!("{before}\n{behind}"),
        (None, _) => prefix.clone(),
    };
    if let Some(next) = array.get_mut(index) {
        let behind = text_of(next.decor().prefix()).to_owned();
        next.decor_mut().set_prefix(joined(&behind));
    } else if array.is_empty() {
        array.set_trailing("");
        array.set_trailing_comma(false);
    } else if array.trailing_comma() {
        let behind = text_of(Some(array.trailing())).to_owned();
        if before.is_some() {
            array.set_trailing(joined(&behind));
        }
    } else if let Some(last) = array.iter_mut().last() {
        let end = match (&before, suffix.split_once('\n')) {
            (Some(before), Some((_, lines))) => format!("{before}\n{lines}"),
            _ => suffix,
        };
        last.decor_mut().set_suffix(end);
    }
}

/// Puts an element before that at `index`, or behind all.
pub(super) fn put_element(array: &mut Array, index: usize, mut value: toml_edit::Value) {
    if index < array.len() {
        let next = array.get_mut(index);
        let prefix = next.map(|next| {
            let prefix = text_of(next.decor().prefix()).to_owned();
            // A comment at the end of the line before stays there.
            let own = match prefix.rsplit_once('\n') {
                Some((_, indent)) => format!("\n{indent}"),
                None if index == 0 => " ".into(),
                None => prefix.clone(),
            };
            next.decor_mut().set_prefix(own);
            prefix
        });
        let prefix = prefix.unwrap_or_default();
        *value.decor_mut() = Decor::new(prefix, "");
        array.insert_formatted(index, value);
        return;
    }
    let multiline = |text: &str| text.rsplit_once('\n').map(|(_, indent)| indent.to_owned());
    let comma = array.trailing_comma();
    let trailing = text_of(Some(array.trailing())).to_owned();
    let last = array.len().checked_sub(1).and_then(|at| array.get_mut(at));
    let Some(last) = last else {
        let (prefix, end) = match trailing.contains('#') {
            true => (trailing, "\n"),
            false => (String::new(), ""),
        };
        *value.decor_mut() = Decor::new(prefix, "");
        array.push_formatted(value);
        array.set_trailing(end);
        return;
    };
    let suffix = text_of(last.decor().suffix()).to_owned();
    let indent = multiline(text_of(last.decor().prefix()));
    // What stands between the last element and the end of the list.
    let between = if comma { &trailing } else { &suffix };
    let prefix = match &indent {
        Some(indent) => {
            let comment = between.rsplit_once('\n').map_or("", |(lines, _)| lines);
            format!("{}\n{indent}", comment.trim_end())
        }
        None if between.contains('#') => between.clone(),
        None => " ".into(),
    };
    let end = match (&indent, between.rsplit_once('\n')) {
        (Some(_), Some((_, indent))) => format!("\n{indent}"),
        (None, _) if between.contains('#') => "\n".into(),
        _ => between.clone(),
    };
    if comma {
        array.set_trailing(end);
        *value.decor_mut() = Decor::new(prefix, "");
    } else {
        last.decor_mut().set_suffix("");
        *value.decor_mut() = Decor::new(prefix, end);
    }
    array.push_formatted(value);
}
