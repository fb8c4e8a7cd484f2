//! A parser for the SVG that the charts write.

/// A start tag with its attributes, and the text after it up to the next tag.
#[derive(Debug)]
pub struct Element {
    pub name: String,
    pub attributes: Vec<(String, String)>,
    pub text: String,
}

impl Element {
    pub fn has(&self, name: &str) -> bool {
        self.attributes.iter().any(|(own, _)| own == name)
    }

    pub fn attribute(&self, name: &str) -> &str {
        let found = self.attributes.iter().find(|(own, _)| own == name);
        found.map_or_else(|| panic!("{self:?} has no {name}"), |(_, value)| value)
    }

    pub fn number(&self, name: &str) -> f64 {
        self.attribute(name).parse().unwrap_or_else(|_| panic!("{name} of {self:?} is not a number"))
    }
}

/// The elements of `svg`. Fails if it is not well formed: unbalanced tags, unescaped text, characters that XML forbids.
pub fn parse(svg: &str) -> Vec<Element> {
    assert!(svg.chars().all(|c| c == '\n' || c >= ' ' && c != '\u{fffe}' && c != '\u{ffff}'), "forbidden characters");
    let (mut elements, mut open): (Vec<Element>, Vec<String>) = Default::default();
    for tag in svg.split('<').skip(1) {
        let (tag, text) = tag.split_once('>').expect("a tag ends");
        assert!(!text.contains('>'), "unescaped: {text}");
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop().as_deref(), Some(name), "an end that nothing began");
            // The text after a child belongs to its parent.
            if let Some(parent) = elements.iter_mut().rev().find(|element| Some(&element.name) == open.last()) {
                parent.text.push_str(&unescape(text));
            }
            continue;
        }
        let closed = tag.strip_suffix('/');
        let (name, mut rest) = closed.unwrap_or(tag).split_once(' ').unwrap_or((closed.unwrap_or(tag), ""));
        let mut attributes = Vec::new();
        while let Some((key, value)) = rest.split_once("=\"") {
            let (value, after) = value.split_once('"').expect("a value ends");
            attributes.push((key.trim().to_string(), unescape(value)));
            rest = after;
        }
        assert_eq!(rest.trim(), "", "after the attributes of {name}");
        if closed.is_none() {
            open.push(name.to_string());
        }
        elements.push(Element { name: name.to_string(), attributes, text: unescape(text) });
    }
    assert!(open.is_empty(), "never ended: {open:?}");
    elements
}

fn unescape(text: &str) -> String {
    for reference in text.split('&').skip(1) {
        assert!(["lt;", "gt;", "quot;", "amp;"].iter().any(|known| reference.starts_with(known)), "&{reference}");
    }
    text.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"").replace("&amp;", "&")
}

pub fn of<'a>(elements: &'a [Element], name: &str) -> Vec<&'a Element> {
    elements.iter().filter(|element| element.name == name).collect()
}

/// No bar, image, line or dot leaves the page, and no text begins or ends outside of it.
pub fn check_inside(elements: &[Element]) {
    let width = elements[0].number("width");
    let height = elements[0].number("height");
    let check = |element: &Element, x: f64, y: f64| {
        assert!((0.0..=width).contains(&x) && (0.0..=height).contains(&y), "{element:?} of {width}x{height}");
    };
    for element in &elements[1..] {
        match element.name.as_str() {
            "text" => check(element, element.number("x"), element.number("y")),
            "image" | "rect" if element.has("x") => {
                let (x, y) = (element.number("x"), element.number("y"));
                check(element, x, y);
                check(element, x + element.number("width"), y + element.number("height"));
            }
            "circle" => {
                let x = element.number("cx");
                let y = element.number("cy");
                let radius = element.number("r");
                check(element, x - radius, y - radius);
                check(element, x + radius, y + radius);
            }
            "path" => places(element.attribute("d")).into_iter().for_each(|(x, y)| check(element, x, y)),
            _ => {}
        }
    }
}

/// The places of a path, by the commands that the charts use.
pub fn places(path: &str) -> Vec<(f64, f64)> {
    let mut at = (0.0, 0.0);
    let mut places = Vec::new();
    let mut rest = path;
    while let Some(command) = rest.chars().next() {
        let end = rest[1..].find(|c: char| c.is_ascii_alphabetic()).map_or(rest.len(), |end| end + 1);
        let numbers: Vec<f64> = rest[1..end].split_whitespace().map(|text| text.parse().expect("a number")).collect();
        at = match (command, numbers.as_slice()) {
            ('M' | 'L', [x, y]) => (*x, *y),
            ('h', [x]) => (at.0 + x, at.1),
            ('v', [y]) => (at.0, at.1 + y),
            ('z', []) => at,
            _ => panic!("{command} in {path}"),
        };
        places.push(at);
        rest = &rest[end..];
    }
    places
}

/// The texts of the page, its title first.
pub fn texts(elements: &[Element]) -> Vec<&str> {
    of(elements, "text").into_iter().map(|text| text.text.trim()).collect()
}
