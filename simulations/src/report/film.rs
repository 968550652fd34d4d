//! A run as a film: routes and what works, moment by moment, for a map with a slider.
//!
//! It shows the true state by the scenario. A frame is kept only if it differs from the one before.
//! Bounded by [`MAX_SITES`], [`MAX_FRAMES`] and [`MAX_BYTES`]: a longer run loses every other
//! moment until it fits.

use std::time::Duration;

use serde::Serialize;

/// Maximum number of sites in a film: as many as fit on a map.
pub const MAX_SITES: usize = 24;
/// Frames of a film: more than a slider has pixels on most screens.
pub const MAX_FRAMES: usize = 900;
/// Frames of a film in bytes, as JSON: a page of this size opens at once.
pub const MAX_BYTES: usize = 2 * 1024 * 1024;
/// The maximum number of events named below the slider.
const MAX_MARKS: usize = 60;

/// One moment; indexes of sites are those of [`Film::sites`].
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Frame {
    /// One entry per site.
    pub sites: Vec<SiteFrame>,
    /// Which sites the nodes of each site use.
    pub flows: Vec<Flow>,
    /// The paths that differ from the start.
    pub paths: Vec<SitePath>,
}

/// A site at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct SiteFrame {
    /// Running nodes.
    #[serde(rename = "r")]
    pub running: usize,
    /// Ready instances on running nodes.
    #[serde(rename = "o")]
    pub ready: usize,
    /// Nodes without a route.
    #[serde(rename = "x")]
    pub nowhere: usize,
}

/// The nodes of a site that use the same other site.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Flow {
    /// Site of the nodes.
    #[serde(rename = "f")]
    pub from: usize,
    /// Site of the origin.
    #[serde(rename = "t")]
    pub to: usize,
    /// The site of the relay, if there is one.
    #[serde(rename = "v", skip_serializing_if = "Option::is_none")]
    pub via: Option<usize>,
    /// The number of nodes.
    #[serde(rename = "n")]
    pub nodes: usize,
    /// Nodes of the flow whose sessions do not reach the origin.
    #[serde(rename = "x", skip_serializing_if = "is_zero")]
    pub failing: usize,
}

/// The path between two sites, with the worse of its two directions.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct SitePath {
    /// The first site.
    #[serde(rename = "a")]
    pub from: usize,
    /// The other site.
    #[serde(rename = "b")]
    pub to: usize,
    /// Its round trip in milliseconds; `None` if nothing passes in at least one direction.
    #[serde(rename = "r")]
    pub rtt_ms: Option<f64>,
    /// Share of datagrams that are lost in a direction, percent.
    #[serde(rename = "l")]
    pub loss_percent: u8,
}

/// A site in the film.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Site {
    /// Its index in the scenario.
    #[serde(skip)]
    pub index: usize,
    /// Its name.
    pub name: String,
    /// Its nodes, running or not.
    pub nodes: usize,
    /// Nodes that host an instance.
    pub origins: usize,
}

/// See the module's description.
#[derive(Debug, Clone)]
pub struct Film {
    /// The sites, by name.
    pub sites: Vec<Site>,
    /// All paths between them, as at the start.
    pub paths: Vec<SitePath>,
    /// The frames, each with its second.
    frames: Vec<(u64, String)>,
    bytes: usize,
    /// Seconds per frame.
    step: u64,
    left_out: usize,
}

impl Film {
    /// A film of these sites, the largest with origins first, before its first moment.
    pub fn new(mut sites: Vec<Site>) -> Self {
        sites.sort_by(|a, b| {
            let rank = |site: &Site| (site.origins == 0, std::cmp::Reverse(site.nodes));
            rank(a).cmp(&rank(b)).then_with(|| a.name.cmp(&b.name))
        });
        let left_out = sites.len().saturating_sub(MAX_SITES);
        sites.truncate(MAX_SITES);
        sites.sort_by(|a, b| a.name.cmp(&b.name));
        Self { sites, paths: Vec::new(), frames: Vec::new(), bytes: 0, step: 1, left_out }
    }

    /// The index in the film of a site of the scenario.
    pub fn index(&self, site: usize) -> Option<usize> {
        self.sites.iter().position(|it| it.index == site)
    }

    /// Adds a frame, no earlier than the last one.
    pub fn push(&mut self, at: Duration, frame: &Frame) {
        let text = serde_json::to_string(frame).expect("numbers are JSON");
        if self.frames.last().is_some_and(|(_, last)| *last == text) {
            return;
        }
        let at_s = at.as_secs();
        self.add(at_s, text);
        while self.frames.len() > MAX_FRAMES || (self.bytes > MAX_BYTES && self.frames.len() > 1) {
            self.step *= 2;
            self.bytes = 0;
            for (at_s, text) in std::mem::take(&mut self.frames) {
                self.add(at_s, text);
            }
        }
    }

    /// The last frame of each step is kept.
    fn add(&mut self, at_s: u64, text: String) {
        if let Some((last, _)) = self.frames.last()
            && last / self.step == at_s / self.step
            && let Some((_, before)) = self.frames.pop()
        {
            self.bytes -= before.len();
        }
        self.bytes += text.len();
        self.frames.push((at_s, text));
    }

    /// JSON for the script of a report, safe within a page: no `<`. `marks` are events with their
    /// second.
    pub fn json(&self, marks: &[(f64, String)], end: Duration) -> String {
        let more = marks.len().saturating_sub(MAX_MARKS);
        let frames: Vec<String> =
            self.frames.iter().map(|(at_s, text)| format!("[{at_s},{text}]")).collect();
        let told = serde_json::json!({
            "sites": self.sites, "paths": self.paths, "marks": &marks[..marks.len() - more],
            "marks_left_out": more, "sites_left_out": self.left_out, "step_s": self.step,
            "end_s": end.as_secs(),
        });
        let told = told.to_string();
        let told = told.trim_end_matches('}');
        format!("{told},\"frames\":[{}]}}", frames.join(",")).replace('<', "\\u003c")
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(value: &usize) -> bool {
    *value == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn film() -> Film {
        let site = |(index, (name, origins)): (usize, (&str, usize))| Site {
            index,
            name: name.into(),
            nodes: 3,
            origins,
        };
        Film::new([("fra", 1), ("ams", 0)].into_iter().enumerate().map(site).collect())
    }

    fn frame(running: usize) -> Frame {
        Frame { sites: vec![SiteFrame { running, ..SiteFrame::default() }], ..Frame::default() }
    }

    fn seconds(film: &Film) -> Vec<u64> {
        film.frames.iter().map(|(at, _)| *at).collect()
    }

    #[test]
    fn a_frame_that_shows_nothing_new_is_not_kept() {
        let mut film = film();
        for (at, running) in [(0, 1), (1, 1), (2, 2), (3, 2), (4, 1)] {
            film.push(Duration::from_secs(at), &frame(running));
        }
        assert_eq!(seconds(&film), [0, 2, 4]);
    }

    #[test]
    fn a_long_run_is_filmed_in_longer_steps_to_its_last_moment() {
        let mut film = film();
        let last = 10 * MAX_FRAMES as u64 + 1;
        for at in 0..=last {
            film.push(Duration::from_secs(at), &frame(at as usize));
        }
        assert!(film.frames.len() <= MAX_FRAMES && film.frames.len() >= MAX_FRAMES / 2 - 1);
        assert_eq!(film.step, 16);
        let (at, text) = film.frames.last().expect("there are some");
        assert_eq!(*at, last);
        assert!(text.contains(&format!("\"r\":{last},")), "{text}");
        // Each frame has the last state of its step.
        assert!(seconds(&film)[..10].iter().all(|at| at % 16 == 15), "{:?}", seconds(&film));
    }

    #[test]
    fn large_frames_are_fewer() {
        let mut film = film();
        let large = |at: usize| Frame {
            sites: vec![SiteFrame { running: at, ..SiteFrame::default() }; 2000],
            ..Frame::default()
        };
        for at in 0..300 {
            film.push(Duration::from_secs(at as u64), &large(at));
        }
        assert!(film.bytes <= MAX_BYTES, "{}", film.bytes);
        assert_eq!(film.bytes, film.frames.iter().map(|(_, text)| text.len()).sum::<usize>());
        assert_eq!(seconds(&film).last(), Some(&299));
    }

    #[test]
    fn the_sites_that_matter_are_in_it() {
        let site = |index: usize| Site {
            index,
            name: format!("s{index:02}"),
            nodes: index,
            origins: usize::from(index == 0),
        };
        let film = Film::new((0..40).map(site).collect());
        assert_eq!((film.sites.len(), film.left_out), (MAX_SITES, 16));
        assert_eq!((film.index(0), film.index(1), film.index(39)), (Some(0), None, Some(23)));
    }

    #[test]
    fn its_words_cannot_end_a_script() {
        let mut film = film();
        film.push(Duration::ZERO, &frame(1));
        let marks = [(1.0, "</script><b>".to_owned())];
        let text = film.json(&marks, Duration::from_secs(9));
        assert!(!text.contains('<'), "{text}");
        let told: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(told["marks"][0][1], "</script><b>");
        assert_eq!(told["frames"][0][1]["sites"][0]["r"], 1);
        assert_eq!((&told["end_s"], &told["sites"][0]["name"]), (&9.into(), &"ams".into()));
    }
}
