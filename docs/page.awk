# What doxygen wants of a page and GitHub must not show: names for pages and headings. awk -v here=(this folder) -f names.awk -f page.awk page.md
# A page's name is its file's, a README's its folder's; a heading's is page-heading, in the spelling of GitHub's anchors.
function slug(text) { text = tolower(text); gsub(/[^a-z0-9_ -]/, "", text); gsub(/ /, "-", text); return text }
function page_of(path,    part, n) {
    n = split(path, part, "/")
    if (part[n] == "README.md") part[n] = part[n - 1]
    sub(/\.md$/, "", part[n])
    return tolower(part[n])
}
FNR == 1 {
    page = FILENAME == root "/README.md" ? "mainpage" : page_of(FILENAME)
}
/^```/ { code = !code }
code { print; next }
FNR == 1 && /^# / { print $0 " {#" page "}"; next }
/^##+ / { text = $0; sub(/^#+ */, "", text); print $0 " {#" page "-" slug(text) "}"; next }
{
    line = $0; done = ""
    while (match(line, /\]\([^):# ]*\.md#[^) ]+\)/)) { # a link to a heading of another page
        link = substr(line, RSTART + 2, RLENGTH - 3)
        at = index(link, "#")
        done = done substr(line, 1, RSTART) "(#" page_of(substr(link, 1, at - 1)) "-" substr(link, at + 1) ")"
        line = substr(line, RSTART + RLENGTH)
    }
    print linked(done line)
}
