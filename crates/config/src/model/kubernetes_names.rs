//! Names of controllers and objects of Kubernetes.

use crate::schema::field::Texts;

/// Name of a controller.
pub(super) const CONTROLLER: Texts = (
    "a domain and a path, as in \"example.org/edge\", of at most 253 characters",
    |text| {
        let is_path =
            |byte: u8| byte.is_ascii_alphanumeric() || b"/-._~%!$&'()*+,;=:".contains(&byte);
        text.len() <= 253
            && text
                .split_once('/')
                .is_some_and(|(domain, path)| is_domain(domain) && !path.is_empty())
            && text.bytes().all(is_path)
    },
);

/// Returns true if the text is the namespace and the name of an object.
pub(super) fn is_object(text: &str) -> bool {
    text.split_once('/')
        .is_some_and(|(namespace, name)| is_domain(namespace) && is_domain(name))
}

/// Returns true if the text is a domain in lower case, as names of objects and hosts are.
pub(super) fn is_domain(text: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=253).contains(&text.len())
        && text.split('.').all(|label| {
            (1..=63).contains(&label.len())
                && label.bytes().all(is_inner)
                && !label.starts_with('-')
                && !label.ends_with('-')
        })
}
