// Runs before anything is drawn: from here on the page may show what needs scripts.
document.documentElement.className = "js";
