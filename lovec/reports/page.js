"use strict";
(() => {
  const form = document.getElementById("controls");
  if (!form) return;
  const at = (id) => document.getElementById(id);
  const method = at("method"), mode = at("mode"), record = at("record"), least = at("least");
  const sets = [...document.querySelectorAll("details.answers")];
  const percent = (share) => (100 * share).toFixed(1) + " %";

  function fill(select, options) { // keeps the choice where it still is one
    const before = select.value;
    select.replaceChildren(...options.map(([value, text]) => new Option(text, value)));
    if (options.some(([value]) => value === before)) select.value = before;
  }

  const named = (name) => sets.filter((set) => set.dataset.method === name);
  const chosen = () => named(method.value).find((set) => set.dataset.mode === mode.value);

  function choose() {
    fill(mode, named(method.value).map((set) => [set.dataset.mode, set.dataset.mode]));
    const set = chosen();
    const articles = [...set.querySelectorAll("article")];
    const question = (article) => article.querySelector("h4").firstChild.textContent.trim().slice(0, 70);
    fill(record, [["", `all ${articles.length} shown`], ...articles.map((a, n) => [a.dataset.id, `${n + 1}: ${question(a)}`])]);
    for (const one of sets) one.hidden = one !== set;
    set.open = true;
    for (const article of articles) article.hidden = record.value !== "" && article.dataset.id !== record.value;
    filter();
  }

  function filter() {
    const set = chosen(), score = Number(least.value);
    at("value").textContent = least.value;
    const [share, truth] = JSON.parse(set.dataset.kept)[score];
    const all = JSON.parse(set.dataset.kept)[0][1];
    let text = `Of all ${set.dataset.sentences} sentences of ${method.value}, ${mode.value}: ${percent(share)} kept`;
    if (truth !== null) text += `; mean factuality of what is kept ${percent(truth)}`;
    if (truth !== null && all !== null && score > 0) text += ` (of all: ${percent(all)})`;
    at("kept").textContent = text + ".";
    for (const article of set.querySelectorAll("article")) {
      const sentences = [...article.querySelectorAll(".lv-s")];
      const passes = (s) => score === 0 || 10 * Number(s.dataset.confidence ?? -1) >= score - 1e-4;
      for (const s of sentences) s.classList.toggle("out", !passes(s));
      const kept = sentences.filter(passes), labelled = kept.filter((s) => s.dataset.factuality !== undefined);
      const mean = labelled.reduce((sum, s) => sum + Number(s.dataset.factuality), 0) / labelled.length;
      const line = article.querySelector(".kept");
      line.hidden = score === 0;
      line.textContent = `${kept.length} of ${sentences.length} sentences kept` +
        (labelled.length ? `, mean factuality ${percent(mean)}` : "");
    }
  }

  for (const s of document.querySelectorAll(".lv-s[data-factuality]")) {
    s.nextElementSibling.dataset.truth = String(Math.round(100 * Number(s.dataset.factuality)) / 10);
  }
  fill(method, [...new Set(sets.map((set) => set.dataset.method))].map((name) => [name, name]));
  for (const select of [method, mode, record]) select.addEventListener("change", choose);
  least.addEventListener("input", filter);
  at("hide").addEventListener("change", () => document.body.classList.toggle("hiding", at("hide").checked));
  at("truth").addEventListener("change", () => document.body.classList.toggle("telling", at("truth").checked));
  form.addEventListener("submit", (event) => event.preventDefault());
  form.hidden = false;
  document.body.classList.add("scripted");
  choose();
})();
