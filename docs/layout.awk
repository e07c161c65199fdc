# doxygen's own layout, but that a header's page begins with its text and has structs behind the sections: doxygen -l x.xml, awk -f layout.awk x.xml
/<file>/ { file = 1 }
/<\/file>/ { file = 0 }
file && /<detaileddescription/ { next }
file && /<classes/ { classes = $0; next }
file && /<\/memberdecl>/ { print classes }
file && /<briefdescription/ { print "    <detaileddescription title=\"\"/>"; next }
{ print }
