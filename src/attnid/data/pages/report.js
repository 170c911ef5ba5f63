(() => {
  for (const element of document.querySelectorAll(".script:not(img)")) element.hidden = false;

  // Claims: filter, sort, open.
  const form = document.getElementById("filters");
  const ledger = document.getElementById("ledger");
  const claims = [...ledger.children];
  const verdicts = [...form.elements.verdict.options].map((option) => option.value);
  const measured = (claim) => (claim.dataset.measured === "" ? Infinity : Number(claim.dataset.measured));
  const orders = {
    order: (one, other) => claims.indexOf(one) - claims.indexOf(other),
    name: (one, other) => one.dataset.name.localeCompare(other.dataset.name),
    verdict: (one, other) => verdicts.indexOf(one.dataset.verdict) - verdicts.indexOf(other.dataset.verdict),
    measured: (one, other) => (measured(one) < measured(other) ? -1 : measured(one) > measured(other) ? 1 : 0),
  };

  function show() {
    const words = form.elements.text.value.toLowerCase().split(/\s+/).filter(Boolean);
    const { verdict, kind } = form.elements;
    for (const claim of claims) {
      const text = claim.textContent.toLowerCase();
      claim.hidden = !(
        (verdict.value === "" || claim.dataset.verdict === verdict.value) &&
        (kind.value === "" || claim.dataset.kind === kind.value) &&
        words.every((word) => text.includes(word))
      );
    }
    const shown = claims.filter((claim) => !claim.hidden).length;
    document.getElementById("shown").textContent = `${shown} of ${claims.length} shown`;
  }

  form.addEventListener("input", show);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.elements.sort.addEventListener("change", () => {
    ledger.append(...[...claims].sort(orders[form.elements.sort.value]));
  });
  for (const button of form.querySelectorAll("[data-open]")) {
    button.addEventListener("click", () => {
      for (const claim of claims) if (!claim.hidden) claim.open = button.dataset.open === "true";
    });
  }
  for (const tally of document.querySelectorAll("[data-show]")) {
    tally.addEventListener("click", () => {
      form.elements.verdict.value = tally.dataset.show;
      show();
    });
  }
  show();

  // A claim's figure is shown once it is opened; the page holds each picture once.
  function showFigure(claim) {
    const image = claim.querySelector("img[data-figure]");
    if (!image || !claim.open || image.src) return;
    const picture = document.getElementById(image.dataset.figure).nextElementSibling.querySelector("img");
    image.src = picture.src;
    image.alt = picture.alt;
    image.hidden = false;
  }
  for (const claim of claims) claim.addEventListener("toggle", () => showFigure(claim));

  // A link to a claim opens it, whatever is filtered.
  function follow() {
    const claim = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!claim || !claims.includes(claim)) return;
    if (claim.hidden) {
      form.reset();
      show();
    }
    claim.open = true;
    claim.scrollIntoView();
  }
  window.addEventListener("hashchange", follow);
  follow();

  // Tables that are searched.
  for (const input of document.querySelectorAll("[data-searches]")) {
    const rows = [...document.getElementById(input.dataset.searches).tBodies[0].rows];
    const status = input.form.querySelector("[role=status]");
    const search = () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      for (const row of rows) row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
      status.textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length} rows shown`;
    };
    input.addEventListener("input", search);
    input.form.addEventListener("submit", (event) => event.preventDefault());
    search();
  }

  // Numbers as CSV: the rows that are shown, to their last digit.
  const quoted = (text) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  const cell = (td) => td.querySelector("data")?.value ?? td.textContent.trim();
  const ofTable = (table) => [...table.rows].filter((row) => !row.hidden).map((row) => [...row.cells].map(cell));
  const ofLedger = () => [
    ["claim", "section", "kind", "verdict", "statement", "printed", "measured"],
    ...[...ledger.children].filter((claim) => !claim.hidden).map((claim) => [
      claim.dataset.name,
      claim.querySelector(".name .soft").textContent,
      claim.dataset.kind,
      claim.dataset.verdict,
      claim.querySelector(".statement").textContent,
      claim.querySelector(".printed").textContent,
      claim.dataset.measured,
    ]),
  ];
  for (const button of document.querySelectorAll("[data-save]")) {
    button.addEventListener("click", () => {
      const table = button.previousElementSibling?.querySelector("table");
      const lines = (table ? ofTable(table) : ofLedger()).map((row) => row.map(quoted).join(","));
      const link = document.createElement("a");
      link.href = URL.createObjectURL(new Blob([lines.join("\n") + "\n"], { type: "text/csv" }));
      link.download = button.dataset.save;
      link.click();
      URL.revokeObjectURL(link.href);
    });
  }
})();
