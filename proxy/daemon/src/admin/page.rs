//! The dashboard at `/`: one self-contained document that draws [`super::view`].
//!
//! Its Content-Security-Policy allows only the script and the style with its hashes; the page loads
//! nothing else, sends requests only to this port, cannot be framed, and makes no markup from text
//! (`trusted-types`).

use std::sync::LazyLock;

use bytes::Bytes;
use data_encoding::BASE64;
use http_body_util::Full;
use hyper::Response;
use hyper::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, HeaderValue, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use sha2::{Digest, Sha256};

/// The parts that draw the map of sites, for other programs: a document that contains all three can
/// call `drawMap` of [`drawing::SCRIPT`] with [`super::view`]'s document or the parts of it that
/// the script names.
pub mod drawing {
    /// Colours, in both themes, selected by `data-theme` of the root element.
    pub const THEME: &str = include_str!("page/theme.css");
    /// The style of the map.
    pub const STYLE: &str = include_str!("page/map.css");
    /// The script, which only declares functions.
    pub const SCRIPT: &str = concat!(include_str!("page/base.js"), include_str!("page/map.js"));
}

const STYLE: &str = concat!(
    include_str!("page/theme.css"),
    include_str!("page/page.css"),
    include_str!("page/map.css"),
);
const BODY: &str = include_str!("page/body.html");
const SCRIPT: &str = concat!(
    include_str!("page/base.js"),
    include_str!("page/map.js"),
    include_str!("page/charts.js"),
    include_str!("page/panels.js"),
    include_str!("page/run.js"),
);
/// The icon, inline, so that the browser requests no file.
const ICON: &str = "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' \
                    viewBox='0 0 20 20'%3E%3Cpath d='M4 15 10 4l6 11M6.5 10.5h7' fill='none' \
                    stroke='%232f55d4' stroke-width='2.4'/%3E%3C/svg%3E";

static PAGE: LazyLock<Page> = LazyLock::new(|| Page::with(Addition::default()));

/// What another program adds to the page.
#[derive(Debug, Clone, Copy, Default)]
pub struct Addition<'a> {
    /// Style, after that of the page.
    pub style: &'a str,
    /// Markup, before that of the page.
    pub body: &'a str,
    /// Script, after that of the page, which has already requested `/view` by then.
    pub script: &'a str,
}

/// A page and its policy.
#[derive(Debug)]
pub struct Page {
    document: String,
    policy: HeaderValue,
}

impl Page {
    /// The page with the additions of another program.
    pub fn with(addition: Addition<'_>) -> Self {
        let Addition { style, body, script } = addition;
        let (style, script) = (format!("{STYLE}{style}"), format!("{SCRIPT}{script}"));
        let policy = format!(
            "default-src 'none'; script-src '{}'; style-src '{}'; connect-src 'self'; img-src \
             data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
             require-trusted-types-for 'script'; trusted-types 'none'",
            hash(&script),
            hash(&style)
        );
        let document = format!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta \
             name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>meshport\
             </title>\n<link rel=\"icon\" href=\"{ICON}\">\n<style>{style}</style>\n</head>\n\
             <body>\n{body}{BODY}<noscript>This page needs JavaScript. `meshport status` says the \
             same.</noscript>\n<script>{script}</script>\n</body>\n</html>\n"
        );
        let policy = HeaderValue::from_str(&policy).expect("hashes and words are a header");
        Self { document, policy }
    }

    /// The page, with the headers that make it safe.
    pub fn answer(&self) -> Response<Full<Bytes>> {
        let mut answer = Response::new(self.document.clone().into());
        let headers = answer.headers_mut();
        headers.insert(CONTENT_SECURITY_POLICY, self.policy.clone());
        for (name, value) in [
            (CONTENT_TYPE, "text/html; charset=utf-8"),
            (CACHE_CONTROL, "no-store"),
            (X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (REFERRER_POLICY, "no-referrer"),
            (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
            (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        answer
    }
}

/// The page of the daemon.
pub(crate) fn answer() -> Response<Full<Bytes>> {
    PAGE.answer()
}

/// The hash that names a part of the page in its policy.
pub fn hash(part: &str) -> String {
    format!("sha256-{}", BASE64.encode(&Sha256::digest(part)))
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    async fn document() -> String {
        let body = answer().into_body().collect().await.expect("it is in memory");
        String::from_utf8(body.to_bytes().to_vec()).expect("it is text")
    }

    /// The content between the first `<tag>` and the next `</tag>`, as a browser reads it.
    fn part(document: &str, tag: &str) -> String {
        let rest = document.split_once(&format!("<{tag}>")).expect("it begins").1;
        rest.split_once(&format!("</{tag}>")).expect("it ends").0.to_owned()
    }

    #[tokio::test]
    async fn the_policy_names_what_a_browser_finds_in_the_page() {
        let document = document().await;
        for tag in ["script", "style"] {
            let named = format!("{tag}-src '{}';", hash(&part(&document, tag)));
            let policy = PAGE.policy.to_str().expect("it is text");
            assert!(policy.contains(&named), "{named}\n{policy}");
        }
        assert_eq!(document.matches("<script").count(), 1);
        assert_eq!(document.matches("</script").count(), 1);
    }

    /// An inline style or handler would be refused by the policy, and markup made from text is how
    /// names become scripts.
    #[tokio::test]
    async fn the_page_needs_nothing_that_its_policy_refuses() {
        let document = document().await;
        for refused in [
            " style=",
            " onclick=",
            " onload=",
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "Function(",
            "DOMParser",
            "createContextualFragment",
        ] {
            assert!(!document.contains(refused), "{refused}");
        }
        let hosts = document.matches("://").count();
        assert_eq!(hosts, 2, "the names of SVG's namespace in the icon and the script");
    }

    #[test]
    fn it_is_small() {
        let bytes = STYLE.len() + BODY.len() + SCRIPT.len();
        assert!(bytes < 80 * 1024, "{bytes} bytes");
    }
}
