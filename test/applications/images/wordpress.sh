#!/bin/sh
# Copies WordPress into an empty /var/www/html, and serves it.
set -e
if [ ! -e /var/www/html/wp-config.php ]; then
	cp -R /usr/share/wordpress/. /var/www/html/
	cp /usr/src/wp-config.php /var/www/html/wp-config.php
fi
exec php8.2 -c /etc/php/8.2/cli/php.ini -S 0.0.0.0:80 -t /var/www/html
