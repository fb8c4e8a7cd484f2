"use strict";

// What is on the page comes from the server as markup whose foreign text is escaped. Without this file a page shows the same.
// What an image shows, at any time.
const chart = (image) => image.getAttribute("src").split("?")[0];

const live = document.getElementById("live");
if (live && live.dataset.events && window.EventSource) {
  const events = new EventSource(live.dataset.events);
  events.onmessage = (event) => {
    const next = document.createElement("template");
    next.innerHTML = event.data;
    // An image stays until its successor has come, so that it does not flicker.
    for (const image of next.content.querySelectorAll("img")) {
      const old = [...live.querySelectorAll("img")].find((own) => chart(own) === chart(image));
      if (!old) continue;
      const fresh = document.importNode(image);
      if (fresh.getAttribute("src") !== old.getAttribute("src")) fresh.onload = () => old.replaceWith(fresh);
      image.replaceWith(old);
    }
    // Nothing follows it.
    if (next.content.querySelector("[data-final]")) events.close();
    live.replaceChildren(next.content);
  };
  events.onopen = () => document.body.classList.remove("lost");
  events.onerror = () => document.body.classList.add("lost");
}

const form = document.querySelector("form.drop");
if (form) {
  const input = form.querySelector("input[type=file]");
  document.addEventListener("dragover", (event) => event.preventDefault());
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    if (event.dataTransfer.files.length === 0) return;
    input.files = event.dataTransfer.files;
    form.submit();
  });
}
